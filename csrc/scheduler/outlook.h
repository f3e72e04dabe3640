// Predictions for a job's trajectories, and outcomes of earlier ones.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "scheduler/fates.h"
#include "scheduler/freshness.h"
#include "scheduler/life_line.h"
#include "scheduler/overcommit.h"
#include "scheduler/predictor.h"
#include "scheduler/settings.h"
#include "scheduler/trajectory_table.h"

namespace rose::scheduler {

// The calls for a trajectory come in this order: create(), then admit(). For each turn: queue(),
// again after each time that the turn left a worker unfinished, then finish(). At the end: over().
class Outlook {
 public:
  explicit Outlook(const Settings& settings = {}) noexcept;

  void create(const Trajectory& trajectory);
  void admit(Trajectory& trajectory, Nanoseconds now_ns);
  void queue(Trajectory& trajectory, Nanoseconds now_ns);
  void finish(Trajectory& trajectory, Nanoseconds now_ns);
  // The trajectory is done or dropped; called before its state changes.
  void over(const Trajectory& trajectory, bool is_done);
  void publish(std::int64_t versions, Nanoseconds now_ns) { clock_.publish(versions, now_ns); }
  void consume(std::int64_t trajectories, std::int64_t published, std::int64_t max_staleness) {
    fates_.consume(trajectories, published, max_staleness);
  }

  // Tokens of a grant that the turn should reserve: enough for all but a few such turns, at least
  // `ahead_tokens` beyond its output so far, and at most its token limit.
  std::int64_t reserve_tokens(const Trajectory& trajectory,
                              std::int64_t ahead_tokens) const noexcept;
  // Rank of the trajectory's predicted lifetime, from start to end: 0 up to the median of live
  // trajectories, 1 from the 95th percentile on. A rank by predicted end time would be wrong: it
  // would make the older of two batches less urgent, although the trainer waits for that batch.
  double lag(const Trajectory& trajectory, Nanoseconds now_ns) const;
  // Position in the queue of a turn that is queued now: the current time minus the turn's credit.
  Nanoseconds order_ns(const Trajectory& trajectory, Nanoseconds now_ns) const;
  // `versions_left`: as in freshness().
  Freshness freshness(const Trajectory& trajectory, std::int64_t versions_left,
                      Nanoseconds now_ns) const noexcept;

  // Number of trajectories for which `lent_tokens` are assumed to suffice; infinite before the
  // first trajectory has ended.
  double live_max(double lent_tokens) const noexcept {
    return overcommit_.value() * lent_tokens / contexts_.mean();
  }
  // Mean final length of a context; 0 before the first trajectory is over.
  double end_tokens() const noexcept { return contexts_.mean(); }
  std::int64_t live() const noexcept { return static_cast<std::int64_t>(lives_.size()); }
  const Fates& fates() const noexcept { return fates_; }

  template <typename Image>
  void image(Image& image) {
    image(settings_, predictor_, contexts_, overcommit_, lives_, clock_, fates_);
  }
  bool is_in_bounds() const noexcept { return predictor_.is_in_bounds() && lives_.is_in_bounds(); }
  bool has_life(std::size_t number) const noexcept { return lives_.has(number); }

 private:
  void expect(Trajectory& trajectory, Nanoseconds now_ns) const noexcept;

  Settings settings_;
  Predictor predictor_;
  WindowMean contexts_;  // final lengths
  Overcommit overcommit_;
  LifeLine lives_;
  TrainerClock clock_;
  Fates fates_;
};

}  // namespace rose::scheduler
