// A cluster in virtual time: the real scheduler core in a simulated environment.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "scheduler/core.h"
#include "sim/action_digest.h"
#include "sim/event_queue.h"
#include "sim/inbox.h"
#include "sim/outcome.h"
#include "sim/simulated_trajectory.h"
#include "sim/trainer.h"
#include "sim/worker.h"
#include "sim/world.h"

namespace rose::sim {

// Returns whether to continue. Called now and then with the virtual time and the number of events
// so far.
using GoOn = std::function<bool(Nanoseconds now_ns, std::int64_t events)>;

// A discrete-event simulation. The driver works as in production. After a first event
// the driver gathers more events for `gather_ns`. Then it steps the core with these events, and
// with the events that result, until none result. Without events it steps the core every `tick_ns`.
// Actions take effect at once.
//
// Equal worlds give equal outcomes: simultaneous events happen in the order in which they were
// scheduled, nothing is random, and no result depends on the order of a hash table.
class Cluster {
 public:
  // `core` must be new and used by nothing else. `world` must outlive the cluster.
  Cluster(const World& world, scheduler::Core& core);
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  // May be called once. Returns Internal after a bug in the scheduler or in the simulation.
  Status run(const GoOn& go_on);
  ClusterOutcome outcome() const;

 private:
  struct Revocation {
    Nanoseconds at_ns;
    std::int64_t left;        // turns that have not restarted yet
    Nanoseconds recovery_ns;  // from at_ns until the last of them restarted; kNone before
  };

  // Time of the next event or step.
  Nanoseconds next_ns() const noexcept;
  Nanoseconds step_due_ns() const noexcept;
  Status advance();
  void handle(const ScheduledEvent& event);
  void note_revocation(const std::vector<TrajectoryId>& victims);
  Status step();
  Status step_core();
  void create();
  // Lets the trainer take a batch if one is ready.
  void train(std::int64_t job);
  void learned(std::int64_t job);
  void over(SimulatedTrajectory& trajectory, TrajectoryPhase phase);

  Status act(const scheduler::Admit& action);
  Status act(const scheduler::Start& action);
  Status act(const scheduler::Stop& action);
  Status act(const scheduler::Deliver& action);
  Status act(const scheduler::TurnDone& action);
  Status act(const scheduler::Drop& action);

  SimulatedTrajectory& trajectory_of(TrajectoryId id) noexcept {
    return trajectories_[static_cast<std::size_t>(id)];
  }
  const JobSpec& job_of(const SimulatedTrajectory& trajectory) const noexcept {
    return world_.jobs[static_cast<std::size_t>(trajectory.job)];
  }
  SimulatedWorker& worker_at(std::int64_t place) noexcept {
    return workers_[static_cast<std::size_t>(place)];
  }
  // Index of the current turn among all turns of the job.
  std::size_t turn_of(const SimulatedTrajectory& trajectory) const noexcept;
  scheduler::TurnReady ready(const SimulatedTrajectory& trajectory) const noexcept;
  void restarted(SimulatedTrajectory& trajectory) noexcept;
  bool is_over() const noexcept;

  const World& world_;
  scheduler::Core& core_;
  EventQueue event_queue_;
  Inbox inbox_;
  std::vector<SimulatedTrajectory> trajectories_;  // by TrajectoryId: those of job 0 first
  std::vector<std::int64_t> turn_tokens_max_;      // by job
  std::deque<SimulatedWorker> workers_;
  std::unordered_map<WorkerId, std::int64_t> place_of_;  // never iterated
  std::deque<Trainer> trainers_;
  std::vector<Revocation> revocations_;

  Nanoseconds now_ns_{0};
  Nanoseconds stepped_ns_{0};
  std::vector<scheduler::Event> step_events_;  // events of the current step
  std::vector<scheduler::Event> answers_;      // the driver's events in response to actions
  std::vector<scheduler::Action> actions_;

  std::vector<std::int64_t> delivered_;  // by job
  std::vector<std::int64_t> dropped_;
  std::int64_t reported_{0};
  std::int64_t events_{0};
  std::int64_t decisions_{0};
  ActionDigest digest_;
  std::vector<LoggedStep> log_;
};

}  // namespace rose::sim
