// Predicts durations of a job's turns, tools and trajectories from finished ones.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "scheduler/events.h"
#include "scheduler/quantile.h"
#include "scheduler/settings.h"

namespace rose::scheduler {

// A mean with a memory of `window` observations. The prior counts as one observation.
class WindowMean {
 public:
  WindowMean(double prior, std::int64_t window) noexcept : mean_{prior}, window_{window} {}
  void observe(double value) noexcept;
  double mean() const noexcept { return mean_; }

  template <typename Image>
  void image(Image& image) {
    image(mean_, window_, count_);
  }

 private:
  double mean_;
  std::int64_t window_;
  std::int64_t count_{1};
};

// Output of a trajectory so far.
struct OutputSoFar {
  std::int64_t turn_tokens{0};  // output of the current turn
  std::int64_t tokens{0};       // output of all turns
  std::int64_t turns{0};        // finished turns
};

// Prediction for a trajectory with a current turn.
struct LengthForecast {
  double turn_tokens_left{0};  // mean tokens still to come, regardless of the turn's limit
  double turn_tokens_high{0};  // the quantile settings.reserve_quantile of the whole turn's length
  double left_s{0};            // median time until the trajectory is over
  double left_s_high{0};       // 90th percentile of that time

  template <typename Image>
  void image(Image& image) {
    image(turn_tokens_left, turn_tokens_high, left_s, left_s_high);
  }
};

// The members of a group share a task, so finished members predict the others. A group's own
// observations count in full. All observations of its job together count as settings.job_weight
// observations. A group without observations uses those of its job. Before a job has observations,
// it uses a prior from the settings, which counts as one observation.
//
// Memory: a group is forgotten when its last live member is over. Results do not depend on the
// order of a hash table.
class Predictor {
 public:
  explicit Predictor(const Settings& settings) noexcept;

  // Add or remove a live member of the group.
  void enter(GroupId group);
  void leave(GroupId group) noexcept;

  // `seconds`: time from queueing to the last token.
  void observe_turn(GroupId group, std::int64_t tokens, double seconds);
  void observe_tool(GroupId group, double seconds);
  void observe_trajectory(GroupId group, std::int64_t tokens, std::int64_t turns);

  LengthForecast forecast(GroupId group, const OutputSoFar& output) const noexcept;
  std::size_t groups() const noexcept { return groups_.size(); }

  template <typename Image>
  void image(Image& image) {
    image(settings_, job_, turn_s_, turn_tokens_, groups_);
  }
  bool is_in_bounds() const noexcept;

 private:
  struct Lengths {
    explicit Lengths(std::int64_t window = 1) noexcept
        : turn_tokens{window}, turns{window}, tokens{window}, tool_ms{window} {}
    Sketch turn_tokens;  // output tokens of a turn
    Sketch turns;        // turns of a trajectory
    Sketch tokens;       // output tokens of a trajectory
    Sketch tool_ms;

    template <typename Image>
    void image(Image& image) {
      image(turn_tokens, turns, tokens, tool_ms);
    }
    bool is_in_bounds() const noexcept;
  };
  struct Group {
    Lengths lengths;
    std::int64_t live{0};

    template <typename Image>
    void image(Image& image) {
      image(lengths, live);
    }
  };

  Lengths* find(GroupId group) noexcept;
  Left left(const Lengths* near, Sketch Lengths::* of, std::int64_t given,
            double high) const noexcept;

  Settings settings_;
  Lengths job_;
  // Seconds and tokens of turns. Their ratio is the pace, weighted by turn length.
  WindowMean turn_s_;
  WindowMean turn_tokens_;
  std::unordered_map<GroupId, Group> groups_;  // never iterated
};

}  // namespace rose::scheduler
