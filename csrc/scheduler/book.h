// All the scheduler knows, and the moves that touch a trajectory and a worker at once.
#pragma once

#include <cstdint>
#include <deque>
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

// A turn that is further behind than this is urgent.
inline constexpr double kUrgentLag = 0.5;

// Each move writes the actions that make it true outside, in the order in which they must happen:
// nobody is started elsewhere before the Stop of where it was.
//
// Invariants:
//   1. A turn that is RUNNING is held by its worker under a live lease; nothing else is, but for
//      turns that are RECALLED from a lease that lives: they hold until the worker has let go.
//   2. A trajectory is in the queue when it is QUEUED, and only then.
//   3. known_tokens is the sum of all Delivers of the turn.
//   4. Each cache that a worker keeps is named by one trajectory, which no worker has.
class Book {
 public:
  Book(const Settings& settings, Policy policy) noexcept;

  void begin_step(Nanoseconds now_ns, std::vector<Action>& actions) noexcept;

  void create(const TrajectoryCreated& event);
  void admit(Trajectory& trajectory);
  void queue(Trajectory& trajectory, const TurnReady& event);
  // `is_urgent`: by its lag.
  void start(Trajectory& trajectory, std::size_t slot, bool is_urgent);
  // Takes `tokens` more of a turn from the TurnProgress at place `event`, after `skip` of them.
  void deliver(Trajectory& trajectory, std::int64_t event, std::int64_t skip, std::int64_t tokens);
  // The worker has shown that the prompt is computed and that it lives.
  void note_progress(Trajectory& trajectory);
  // What a start of the turn takes of a lease.
  std::int64_t reserve_tokens(const Trajectory& trajectory) const noexcept {
    return jobs[trajectory.job].outlook.reserve_tokens(trajectory, settings.reserve_ahead_tokens);
  }
  // Keeps what a turn takes of its lease ahead of what it has said, whether there is room or not.
  // True if it takes more than before.
  bool extend(Trajectory& trajectory);
  // Takes a turn that is RUNNING away from its worker.
  void recall(Trajectory& trajectory);
  // The worker is done with the turn, but tokens that it said are still under way.
  void await_rest(Trajectory& trajectory, TurnEnd end, std::int64_t tokens);
  // To the front of the queue, with the tokens that are known.
  void requeue(Trajectory& trajectory);
  void finish(Trajectory& trajectory);
  // Counts the attempt, and queues or drops the turn.
  void fail(Trajectory& trajectory);
  void end(Trajectory& trajectory);
  // Gone from wherever it is; `trajectory` is no more.
  void drop(Trajectory& trajectory, DropReason reason);

  void stop(const Trajectory& trajectory);
  // A lease of a new epoch, or the one that lives with other tokens: with none it ends.
  void set_lease(std::size_t slot, const LeaseChanged& event);
  void end_lease(std::size_t slot);
  void lose(std::size_t slot);
  // Those whose grace period is over.
  std::vector<TrajectoryId> take_overdue();

  // How many trajectories of a job may be under way. More than memory holds to their ends push out
  // one another's caches, and compute the same contexts again and again.
  std::int64_t live_max(std::size_t job) const noexcept;
  // How far it is behind the others, or how close to going stale: from 0 to 1.
  double lag(const Trajectory& trajectory) const;
  // Whether so many seats are left that all turns of the job are urgent, whatever their lag.
  bool is_tail(std::size_t job) const noexcept;
  Freshness freshness(const Trajectory& trajectory) const noexcept;
  // Of a worker that may run a turn of it: what older weights say would be too old by the time the
  // trainer comes to it.
  std::int64_t version_floor(const Trajectory& trajectory) const noexcept;
  // Of a worker that may run anything of the job.
  std::int64_t version_floor(std::size_t job) const noexcept {
    return jobs[job].published - settings.worker_lag_max;
  }

  const Settings settings;
  const Policy policy;
  JobTable jobs;
  TrajectoryTable trajectories;
  WorkerTable workers;
  TurnQueue turns;
  Risk risk;
  Fairness fairness;
  Counters counters;
  Nanoseconds now_ns{0};
  // Whether something that waits could find a worker now that it did not find before.
  bool has_changed{false};
  // No stall is older than this.
  Nanoseconds stall_check_ns{kNever};
  // A bug of the scheduler: the step reports it.
  const char* fault{nullptr};

  template <typename Image>
  void image(Image& image) {
    image(jobs, trajectories, workers, turns, risk, fairness, counters, now_ns, has_changed,
          stall_check_ns, graces_);
  }
  // Whether all parts are sound and agree with one another: an image may say anything.
  bool is_sound();

 private:
  struct Grace {
    Nanoseconds until_ns{0};
    TrajectoryId trajectory{0};

    template <typename Image>
    void image(Image& image) {
      image(until_ns, trajectory);
    }
  };

  bool are_graces_sound() const;
  // Whether it lost its cache for want of room, or leaves it because there is none beside it.
  bool is_displaced(const Trajectory& trajectory, std::size_t slot) const noexcept;
  void move(Trajectory& trajectory, TrajectoryState to);
  void wait_for_worker(Trajectory& trajectory, QueueRank rank);
  QueueKey queue_key(const Trajectory& trajectory, QueueRank rank) const;
  void release(Trajectory& trajectory) noexcept;
  void compute(Run& run) noexcept;
  // What a token takes on a worker as it is loaded now.
  double token_s(std::size_t slot) const noexcept;
  // Compares how long a turn took with what its worker's figures foresaw.
  void note_pace(const Trajectory& trajectory) noexcept;
  void leave_queue(Trajectory& trajectory);
  // Of a turn that is over or waits, what it used stays at its home for the next.
  void keep_cache(Trajectory& trajectory);
  // Nobody comes for what its home keeps.
  void leave_cache(const Trajectory& trajectory) noexcept;
  void begin_grace(Trajectory& trajectory);
  void act(const Action& action) { actions_->push_back(action); }

  std::vector<Action>* actions_{nullptr};
  std::deque<Grace> graces_;  // by their end: each is as long as the other
};

}  // namespace rose::scheduler
