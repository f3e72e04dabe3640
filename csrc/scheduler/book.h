// The scheduler's state, and the moves that change a trajectory and a worker together.
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <vector>

#include "base/clock.h"
#include "scheduler/actions.h"
#include "scheduler/fairness.h"
#include "scheduler/jobs.h"
#include "scheduler/risk.h"
#include "scheduler/settings.h"
#include "scheduler/stats.h"
#include "scheduler/trajectory_table.h"
#include "scheduler/turn_queue.h"
#include "scheduler/worker_table.h"

namespace rose::scheduler {

// A turn is urgent if its lag exceeds this value; see Book::lag().
inline constexpr double kUrgentLag = 0.5;

// Each move appends the actions that carry it out, in the order of execution: the Stop on the old
// worker comes before the Start on another.
//
// Invariants:
//   1. A worker holds exactly the RUNNING turns under its live grant, and the turns RECALLED from
//      that grant that are not released yet.
//   2. A trajectory is in the queue if and only if it is QUEUED.
//   3. A turn's known_tokens is the number of tokens in all Deliver actions of the turn.
//   4. Each cache on a worker belongs to one trajectory, which is not on any worker.
//   5. A turn starts only on a worker whose version it accepts, and all its tokens are of versions
//      that it accepts.
class Book {
 public:
  Book(const Settings& settings, PlacementPolicy policy) noexcept;

  void begin_step(Nanoseconds now_ns, std::vector<Action>& actions) noexcept;

  void create(const TrajectoryCreated& event);
  void admit(Trajectory& trajectory);
  void queue(Trajectory& trajectory, const TurnReady& event);
  // `is_urgent`: whether its lag exceeds kUrgentLag.
  void start(Trajectory& trajectory, std::size_t slot, bool is_urgent);
  // Skips the first `skip` tokens of the TurnProgress at index `event`, and takes the next `tokens`
  // tokens.
  void deliver(Trajectory& trajectory, std::int64_t event, std::int64_t skip, std::int64_t tokens);
  // Records that the worker is alive and has computed the prompt.
  void note_progress(Trajectory& trajectory);
  // Tokens of a grant that the turn reserves when it starts.
  std::int64_t reserve_tokens(const Trajectory& trajectory) const noexcept {
    return jobs[trajectory.job].outlook.reserve_tokens(trajectory, settings.reserve_ahead_tokens);
  }
  // Raises a turn's reservation so that it stays ahead of the turn's output, even if there is no
  // room. Returns whether the reservation grew.
  bool extend(Trajectory& trajectory);
  // Recalls a RUNNING turn from its worker.
  void recall(Trajectory& trajectory);
  // The worker has ended the turn, but some of its output has not arrived yet.
  void await_rest(Trajectory& trajectory, TurnEnd end, std::int64_t tokens);
  // Queues the turn again, before all fresh turns, with its known tokens.
  void requeue(Trajectory& trajectory);
  void finish(Trajectory& trajectory);
  // Finishes a turn that is queued or on a worker with its first `tokens` tokens.
  void cut(Trajectory& trajectory, std::int64_t tokens);
  // Counts a failed attempt, and queues or drops the turn.
  void fail(Trajectory& trajectory);
  void end(Trajectory& trajectory);
  // Removes the trajectory from everywhere; the reference is invalid afterwards.
  void drop(Trajectory& trajectory, DropReason reason);

  void stop(const Trajectory& trajectory);
  // Applies a grant of a new epoch, or resizes the live one; 0 tokens end it.
  void set_grant(std::size_t slot, const GrantChanged& event);
  void end_grant(std::size_t slot, bool is_revoked = true);
  // Recalls the worker's turns, and gives it no more.
  void drain(std::size_t slot);
  // Recalls the running turns that do not accept the version of the worker's weights.
  void recall_misfits(std::size_t slot);
  void pause(bool is_recalling);
  void resume() noexcept;
  // Drops the queued turns that no worker can run any more, because every worker has newer weights
  // than they accept. Without a worker they wait.
  void drop_outdated();
  void lose(std::size_t slot, bool is_crash);
  // Returns the recalled trajectories whose grace period is over; each period is returned once.
  std::vector<TrajectoryId> take_overdue();

  // Limit of a job's live trajectories. If memory cannot hold their final contexts, they evict one
  // another's caches and compute the same contexts repeatedly.
  std::int64_t live_max(std::size_t job) const noexcept;
  // Urgency from 0 to 1: the lag behind other trajectories or the progress towards the limit of
  // staleness, whichever is larger.
  double lag(const Trajectory& trajectory) const;
  // True if so many seats are free that all turns of the job get urgency 1, whatever their lag.
  bool is_tail(std::size_t job) const noexcept;
  Freshness freshness(const Trajectory& trajectory) const noexcept;
  // Oldest worker version that may run a turn of the trajectory: output of older weights would be
  // stale when the trainer uses it.
  std::int64_t version_floor(const Trajectory& trajectory) const noexcept;
  // Oldest worker version that may run any turn of the job.
  std::int64_t version_floor(std::size_t job) const noexcept {
    return jobs[job].published - settings.worker_lag_max;
  }

  const Settings settings;
  const PlacementPolicy policy;
  JobTable jobs;
  TrajectoryTable trajectories;
  WorkerTable workers;
  TurnQueue turns;
  Risk risk;
  Fairness fairness;
  Counters counters;
  Nanoseconds now_ns{0};
  // True if a waiting turn may find a worker after the latest changes.
  bool has_changed{false};
  bool is_paused{false};  // no turn starts
  // No turn stalls before this time.
  Nanoseconds stall_check_ns{kNever};
  // A bug in the scheduler, reported by the step.
  const char* fault{nullptr};

  template <typename Image>
  void image(Image& image) {
    image(jobs, trajectories, workers, turns, risk, fairness, counters, now_ns, has_changed,
          is_paused, stall_check_ns, graces_, expiring_);
  }
  // True if every index of an image is within its table, and every named trajectory exists. An
  // image's checksum answers for all other values.
  bool is_in_bounds();

 private:
  struct Grace {
    Nanoseconds until_ns{0};
    TrajectoryId trajectory{0};

    template <typename Image>
    void image(Image& image) {
      image(until_ns, trajectory);
    }
  };

  // True if the trajectory lost its cache for lack of memory, or leaves the cache because the home
  // lacks room.
  bool is_displaced(const Trajectory& trajectory, std::size_t slot) const noexcept;
  void move(Trajectory& trajectory, TrajectoryState to);
  void wait_for_worker(Trajectory& trajectory, QueueRank rank);
  QueueKey queue_key(const Trajectory& trajectory, QueueRank rank) const;
  void release(Trajectory& trajectory) noexcept;
  void compute(Run& run) noexcept;
  // Time per token on a worker at its current load.
  double token_s(std::size_t slot) const noexcept;
  // Compares a turn's duration with the one predicted from its worker's figures.
  void note_pace(const Trajectory& trajectory) noexcept;
  void leave_queue(Trajectory& trajectory);
  // Keeps the context of a finished or waiting turn cached at its home.
  void keep_cache(Trajectory& trajectory);
  // Gives up the trajectory's cache at its home.
  void leave_cache(const Trajectory& trajectory) noexcept;
  void begin_grace(Trajectory& trajectory);
  void act(const Action& action) { actions_->push_back(action); }

  std::vector<Action>* actions_{nullptr};
  std::set<TrajectoryId> expiring_;  // queued turns that accept no weights after some version
  std::deque<Grace> graces_;         // in the order of their ends, since all have the same length
};

}  // namespace rose::scheduler
