// What a job expects of its trajectories, and what became of those before them.
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

// Told of every step in the life of a trajectory, in this order: create, admit; then queue, which
// may come again for a turn that left its worker, and finish, for each turn; at last over.
class Outlook {
 public:
  explicit Outlook(const Settings& settings = {}) noexcept;

  void create(const Trajectory& trajectory);
  void admit(Trajectory& trajectory, Nanoseconds now_ns);
  void queue(Trajectory& trajectory, Nanoseconds now_ns);
  void finish(Trajectory& trajectory, Nanoseconds now_ns);
  // Done, or dropped: before its state changes.
  void over(const Trajectory& trajectory, bool is_done);
  void publish(std::int64_t versions, Nanoseconds now_ns) { clock_.publish(versions, now_ns); }
  void consume(std::int64_t trajectories, std::int64_t published, std::int64_t max_staleness) {
    fates_.consume(trajectories, published, max_staleness);
  }

  // What the turn should take of a lease: as much as all but a few such turns come to, ahead of
  // what it has said by a margin, at most what it may say. `ahead_tokens` is that margin.
  std::int64_t reserve_tokens(const Trajectory& trajectory,
                              std::int64_t ahead_tokens) const noexcept;
  // From when it started to when it should be over: 0 up to the median of all that are live, 1 from
  // the 95th percentile on. Not by the time at which it is over: of two batches under way the older
  // one, which the trainer waits for, would be the less urgent.
  double lag(const Trajectory& trajectory, Nanoseconds now_ns) const;
  // When the turn counts as queued that was queued now.
  Nanoseconds order_ns(const Trajectory& trajectory, Nanoseconds now_ns) const;
  // `versions_left`: as of freshness().
  Freshness freshness(const Trajectory& trajectory, std::int64_t versions_left,
                      Nanoseconds now_ns) const noexcept;

  // How many trajectories so much memory is taken to hold; infinite before one was over.
  double live_max(double lent_tokens) const noexcept {
    return overcommit_.value() * lent_tokens / contexts_.mean();
  }
  // What a context comes to at its end, in the mean; 0 before one was over.
  double end_tokens() const noexcept { return contexts_.mean(); }
  std::int64_t live() const noexcept { return static_cast<std::int64_t>(lives_.size()); }
  std::size_t lives() const noexcept { return lives_.size(); }
  const Fates& fates() const noexcept { return fates_; }

  template <typename Image>
  void image(Image& image) {
    image(settings_, predictor_, contexts_, overcommit_, lives_, clock_, fates_);
  }
  bool is_sound() const noexcept;
  // Whether it goes by these.
  bool has(const Settings& settings) const noexcept {
    return settings_ == settings && predictor_.has(settings);
  }
  // Whether it was told of the trajectory, and expects something that can be.
  bool knows(const Trajectory& trajectory) const noexcept;

 private:
  void expect(Trajectory& trajectory, Nanoseconds now_ns) const noexcept;

  Settings settings_;
  Predictor predictor_;
  WindowMean contexts_;  // of trajectories that are over
  Overcommit overcommit_;
  LifeLine lives_;
  TrainerClock clock_;
  Fates fates_;
};

}  // namespace rose::scheduler
