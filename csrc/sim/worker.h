// A rollout worker: an engine with its capacity grant, weights, and reports to the scheduler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "scheduler/actions.h"
#include "sim/engine.h"
#include "sim/flight.h"
#include "sim/inbox.h"
#include "sim/prefix_store.h"
#include "sim/timeline.h"
#include "sim/world.h"

namespace rose::sim {

struct WorkerCounts {
  std::int64_t revocations{0};
  std::int64_t recalls{0};
  std::int64_t reprefill_tokens{0};
};

// Revocation is local: the worker first removes turns that no longer fit from the engine, then
// reports them with all their tokens.
//
// Weights: a published version arrives after `update_ns`, while the worker runs. Then the worker
// pauses for `pause_ns` and has the version. Running turns keep their computed contexts; unused
// contexts are lost. A worker without a grant updates too.
//
// Memory: contexts grow with every token. Unused contexts are evicted only when a turn starts, and
// only a report detects that turns no longer fit.
class RolloutWorker {
 public:
  RolloutWorker(const WorkerSpec& spec, const Knobs& knobs, std::int64_t place, Timeline& timeline,
                Inbox& inbox);

  void join(Nanoseconds now_ns);

  // ---- actions of the scheduler
  // `flight`: the turn's trajectory. `to_say`: tokens left to generate.
  void start(const scheduler::Start& start, Flight& flight, std::int64_t to_say,
             Nanoseconds now_ns);
  void stop(TrajectoryId id, std::vector<Flight>& flights, Nanoseconds now_ns);

  // ---- events
  void on_batch_changed(std::int64_t mark, std::vector<Flight>& flights, Nanoseconds now_ns);
  // Also returns turns if the engine is overfull.
  void on_report_due(std::vector<Flight>& flights, Nanoseconds now_ns);
  // Returns the turns evicted by a smaller grant.
  std::vector<TrajectoryId> on_lending_changed(std::vector<Flight>& flights, Nanoseconds now_ns);
  void on_started_up(std::int64_t mark, Nanoseconds now_ns);
  void on_published(std::int64_t version, Nanoseconds now_ns);
  void on_update_arrived(std::int64_t version, Nanoseconds now_ns);
  void on_updated(Nanoseconds now_ns);

  // Reports all pending output at the end of the simulation.
  void report(Nanoseconds now_ns);

  std::int64_t tokens_said() const noexcept { return engine_.tokens_said(); }
  double busy_ns() const noexcept { return engine_.busy_ns(); }
  const WorkerCounts& counts() const noexcept { return counts_; }

 private:
  // A turn on this worker.
  struct Held {
    TrajectoryId id;
    std::int64_t turn;
    std::int64_t first_token;    // tokens generated before it came here
    std::int64_t prompt_tokens;  // including first_token
    std::int64_t to_say;         // tokens to generate here
    std::int64_t said;           // tokens generated here and reported
    std::int64_t version;        // weight version that computed its context
  };

  void apply_speed(Nanoseconds now_ns) noexcept;
  void foresee_batch();
  void foresee_report(Nanoseconds now_ns);
  // Reports the tokens up to `said`, the count generated here so far.
  void report(Held& held, std::int64_t said, Nanoseconds now_ns);
  // Reports the end of a turn that has left the engine.
  void end(Held& held, const Engine::Progress& progress, scheduler::TurnEnd end, Flight& flight,
           Nanoseconds now_ns);
  void give_back(std::size_t place, std::vector<Flight>& flights, Nanoseconds now_ns);
  // Returns turns to the scheduler, latest first, until the others fit; returns their trajectories.
  std::vector<TrajectoryId> fit(std::vector<Flight>& flights, Nanoseconds now_ns);
  void open(Nanoseconds now_ns);
  void report_grant(Nanoseconds now_ns);
  void pause(Nanoseconds now_ns);
  std::int64_t held_tokens(Nanoseconds now_ns) noexcept;

  const WorkerSpec& spec_;
  const std::int64_t place_;
  const Nanoseconds report_ns_;
  Timeline& timeline_;
  Inbox& inbox_;
  Engine engine_;
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
  Nanoseconds batch_ns_{kNever};  // scheduled time under that mark
  bool is_report_foreseen_{false};
  std::int64_t start_up_mark_{0};
  std::vector<std::size_t> finished_;  // scratch
};

}  // namespace rose::sim
