// A rollout worker: an engine with its capacity grant and weights, which reports to the scheduler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "scheduler/actions.h"
#include "sim/engine.h"
#include "sim/event_queue.h"
#include "sim/inbox.h"
#include "sim/prefix_store.h"
#include "sim/simulated_trajectory.h"
#include "sim/world.h"

namespace rose::sim {

struct WorkerCounts {
  std::int64_t revocations{0};
  std::int64_t recalls{0};
  std::int64_t reprefill_tokens{0};
};

// Revocation is local: the worker first removes from its engine the turns that no longer fit, and
// then reports these turns with all their tokens.
//
// Weights: a published version arrives after `update_ns`, while the worker runs. Then the worker
// pauses for `pause_ns`, and runs with the new version afterwards. Running turns keep their
// computed contexts; unused contexts are lost. A worker without a grant updates, too.
//
// Memory: contexts grow with every token. Unused contexts are evicted only when a turn starts, and
// only a report detects that turns no longer fit.
class SimulatedWorker {
 public:
  SimulatedWorker(const WorkerSpec& spec, const Knobs& knobs, std::int64_t place,
                  EventQueue& event_queue, Inbox& inbox);

  void join(Nanoseconds now_ns);

  // ---- actions of the scheduler
  // `trajectory`: the turn's trajectory. `to_generate`: tokens left to generate.
  void start(const scheduler::Start& start, SimulatedTrajectory& trajectory,
             std::int64_t to_generate, Nanoseconds now_ns);
  void stop(TrajectoryId id, std::vector<SimulatedTrajectory>& trajectories, Nanoseconds now_ns);

  // ---- events
  void on_batch_changed(std::int64_t mark, std::vector<SimulatedTrajectory>& trajectories,
                        Nanoseconds now_ns);
  // Reports progress, and returns turns to the scheduler if the engine holds too many tokens.
  void on_report_due(std::vector<SimulatedTrajectory>& trajectories, Nanoseconds now_ns);
  // Returns the trajectories whose turns were evicted because the loan became smaller.
  std::vector<TrajectoryId> on_lending_changed(std::vector<SimulatedTrajectory>& trajectories,
                                               Nanoseconds now_ns);
  void on_started_up(std::int64_t mark, Nanoseconds now_ns);
  void on_published(std::int64_t version, Nanoseconds now_ns);
  void on_update_arrived(std::int64_t version, Nanoseconds now_ns);
  void on_updated(Nanoseconds now_ns);

  // Reports all pending output at the end of the simulation.
  void report(Nanoseconds now_ns);

  std::int64_t tokens_generated() const noexcept { return engine_.tokens_generated(); }
  double busy_ns() const noexcept { return engine_.busy_ns(); }
  const WorkerCounts& counts() const noexcept { return counts_; }

 private:
  // A turn on this worker.
  struct Held {
    TrajectoryId id;
    std::int64_t turn;
    std::int64_t first_token;    // number of the turn's tokens generated before it came here
    std::int64_t prompt_tokens;  // its context when it came here, including those tokens
    std::int64_t to_generate;    // tokens to generate here
    std::int64_t reported;       // tokens generated here and reported
    std::int64_t version;        // weight version that computed its context
  };

  void apply_speed(Nanoseconds now_ns) noexcept;
  void schedule_batch_change();
  void schedule_report(Nanoseconds now_ns);
  // Reports the new tokens of a turn, which has generated `generated` tokens here so far.
  void report(Held& held, std::int64_t generated, Nanoseconds now_ns);
  // Reports the end of a turn that has left the engine.
  void end(Held& held, const SimulatedEngine::Progress& progress, scheduler::TurnEnd end,
           SimulatedTrajectory& trajectory, Nanoseconds now_ns);
  void give_back(std::size_t place, std::vector<SimulatedTrajectory>& trajectories,
                 Nanoseconds now_ns);
  // Gives turns back to the scheduler, newest first, until the others fit. Returns the trajectories
  // of these turns.
  std::vector<TrajectoryId> fit(std::vector<SimulatedTrajectory>& trajectories, Nanoseconds now_ns);
  void open(Nanoseconds now_ns);
  void report_grant(Nanoseconds now_ns);
  void pause(Nanoseconds now_ns);
  std::int64_t held_tokens(Nanoseconds now_ns) noexcept;

  const WorkerSpec& spec_;
  const std::int64_t place_;
  const Nanoseconds report_ns_;
  EventQueue& event_queue_;
  Inbox& inbox_;
  SimulatedEngine engine_;
  PrefixStore prefixes_;
  std::vector<Held> held_;  // in start order
  WorkerCounts counts_;

  std::size_t row_{0};  // current row of WorkerSpec::lending
  double share_{1};
  std::int64_t kv_tokens_;
  std::int64_t grant_epoch_{0};
  bool has_grant_{false};

  std::int64_t version_{0};
  std::int64_t pausing_for_{kNone};  // version of the current pause
  std::int64_t arrived_{0};          // newest version that has arrived

  std::int64_t batch_mark_{0};
  Nanoseconds batch_ns_{kNever};  // time of the event scheduled with batch_mark_
  bool is_report_scheduled_{false};
  std::int64_t start_up_mark_{0};
  std::vector<std::size_t> finished_;  // scratch
};

}  // namespace rose::sim
