// How long turns, tools and trajectories of a job take, from those that are over.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "scheduler/events.h"
#include "scheduler/quantile.h"
#include "scheduler/settings.h"

namespace rose::scheduler {

// A mean with a memory of `window` observations. What it starts with counts as one.
class WindowMean {
 public:
  WindowMean(double prior, std::int64_t window) noexcept : mean_{prior}, window_{window} {}
  void observe(double value) noexcept;
  double mean() const noexcept { return mean_; }

  template <typename Image>
  void image(Image& image) {
    image(mean_, window_, count_);
  }
  bool is_sound() const noexcept;

 private:
  double mean_;
  std::int64_t window_;
  std::int64_t count_{1};
};

// What a trajectory has said so far.
struct Said {
  std::int64_t turn_tokens{0};  // of the turn at hand
  std::int64_t tokens{0};       // in all turns
  std::int64_t turns{0};        // that are over
};

// What may be expected of a trajectory with a turn at hand.
struct Forecast {
  double turn_tokens_left{0};  // on average, whatever the turn's limit is
  double turn_tokens_high{0};  // of the whole turn: at most so many, in settings.reserve_quantile
  double left_s{0};            // until the trajectory is over: half of them take longer
  double left_s_high{0};       // and one of ten takes longer than this

  template <typename Image>
  void image(Image& image) {
    image(turn_tokens_left, turn_tokens_high, left_s, left_s_high);
  }
};

// The members of a group share a task, so those that are over tell of the others. What a group has
// seen counts in full, and its job's other trajectories for settings.job_weight observations; a
// group that has seen nothing expects what its job does, and a job what the settings say, which
// count for one observation.
//
// Memory: a group is forgotten when its last live member is over. Deterministic: no order of a hash
// table shows.
class Predictor {
 public:
  explicit Predictor(const Settings& settings) noexcept;

  // A member of the group is live; is over.
  void enter(GroupId group);
  void leave(GroupId group) noexcept;

  // From the moment in which it wanted a worker to its last token.
  void observe_turn(GroupId group, std::int64_t tokens, double seconds);
  void observe_tool(GroupId group, double seconds);
  void observe_trajectory(GroupId group, std::int64_t tokens, std::int64_t turns);

  Forecast forecast(GroupId group, const Said& said) const noexcept;
  std::size_t groups() const noexcept { return groups_.size(); }

  template <typename Image>
  void image(Image& image) {
    image(settings_, job_, turn_s_, turn_tokens_, groups_);
  }
  bool is_sound() const noexcept;
  bool has(const Settings& settings) const noexcept { return settings_ == settings; }

 private:
  struct Lengths {
    explicit Lengths(std::int64_t window = 1) noexcept
        : turn_tokens{window}, turns{window}, tokens{window}, tool_ms{window} {}
    Sketch turn_tokens;  // of a turn
    Sketch turns;        // of a trajectory
    Sketch tokens;       // of a trajectory
    Sketch tool_ms;

    template <typename Image>
    void image(Image& image) {
      image(turn_tokens, turns, tokens, tool_ms);
    }
    bool is_sound() const noexcept;
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
  // Seconds and tokens of turns: their ratio is the pace, in which long turns count for more.
  WindowMean turn_s_;
  WindowMean turn_tokens_;
  std::unordered_map<GroupId, Group> groups_;  // looked up, never walked
};

}  // namespace rose::scheduler
