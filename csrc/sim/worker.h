// A rollout worker: an engine, its lease, its weights, and what it tells the scheduler.
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

// Revocation is local: turns that no longer fit are taken out of the engine first, and told after,
// with every token there was.
//
// Weights: a version that was published comes `update_ns` later, while the worker runs on. Then it
// stands still for `pause_ns`, and has it. Turns that run keep what they have computed; what no
// turn uses is forgotten. A worker that has no lease takes versions just the same.
//
// Memory: contexts grow with every token, but only when a turn starts are unused ones forgotten for
// them, and only when the worker reports does it see that turns no longer fit.
class RolloutWorker {
 public:
  RolloutWorker(const WorkerSpec& spec, const Knobs& knobs, std::int64_t place, Timeline& timeline,
                Inbox& inbox);

  void join(Nanoseconds now_ns);

  // ---- what the scheduler wants
  // `flight` is of the turn; `to_say` is what is left of it.
  void start(const scheduler::Start& start, Flight& flight, std::int64_t to_say,
             Nanoseconds now_ns);
  void stop(TrajectoryId id, std::vector<Flight>& flights, Nanoseconds now_ns);

  // ---- what happens
  void on_batch_changed(std::int64_t mark, std::vector<Flight>& flights, Nanoseconds now_ns);
  // An engine that is overfull gives turns back, too.
  void on_report_due(std::vector<Flight>& flights, Nanoseconds now_ns);
  // Returns the turns that a smaller lease cost.
  std::vector<TrajectoryId> on_lending_changed(std::vector<Flight>& flights, Nanoseconds now_ns);
  void on_started_up(std::int64_t mark, Nanoseconds now_ns);
  void on_published(std::int64_t version, Nanoseconds now_ns);
  void on_update_arrived(std::int64_t version, Nanoseconds now_ns);
  void on_updated(Nanoseconds now_ns);

  // Says what it has not said yet: the world ends.
  void report(Nanoseconds now_ns);

  std::int64_t tokens_said() const noexcept { return engine_.tokens_said(); }
  double busy_ns() const noexcept { return engine_.busy_ns(); }
  const WorkerCounts& counts() const noexcept { return counts_; }

 private:
  // A turn on this worker.
  struct Held {
    TrajectoryId id;
    std::int64_t turn;
    std::int64_t first_token;    // said before it came here
    std::int64_t prompt_tokens;  // with them
    std::int64_t to_say;         // here
    std::int64_t said;           // here, and reported
    std::int64_t version;        // that its context is computed with
  };

  void apply_speed(Nanoseconds now_ns) noexcept;
  void foresee_batch();
  void foresee_report(Nanoseconds now_ns);
  // It has said so much here by now.
  void report(Held& held, std::int64_t said, Nanoseconds now_ns);
  // Reports the last of a turn that has left the engine.
  void end(Held& held, const Engine::Progress& progress, scheduler::TurnEnd end, Flight& flight,
           Nanoseconds now_ns);
  void give_back(std::size_t place, std::vector<Flight>& flights, Nanoseconds now_ns);
  // Gives back turns, who came last first, until the others fit; returns whose they were.
  std::vector<TrajectoryId> fit(std::vector<Flight>& flights, Nanoseconds now_ns);
  void open(Nanoseconds now_ns);
  void tell_lease(Nanoseconds now_ns);
  void pause(Nanoseconds now_ns);
  std::int64_t held_tokens(Nanoseconds now_ns) noexcept;

  const WorkerSpec& spec_;
  const std::int64_t place_;
  const Nanoseconds report_ns_;
  Timeline& timeline_;
  Inbox& inbox_;
  Engine engine_;
  PrefixStore prefixes_;
  std::vector<Held> held_;  // in the order of their starts
  WorkerCounts counts_;

  std::size_t row_{0};  // of the lending
  double share_{1};
  std::int64_t kv_tokens_;
  std::int64_t lease_epoch_{0};
  bool is_leased_{false};

  std::int64_t version_{0};
  std::int64_t pausing_for_{kNone};  // the version that it stands still for
  std::int64_t arrived_{0};          // the newest version that is here

  std::int64_t batch_mark_{0};
  Nanoseconds batch_ns_{kNever};  // foreseen under that mark
  bool is_report_foreseen_{false};
  std::int64_t start_up_mark_{0};
  std::vector<std::size_t> finished_;  // scratch
};

}  // namespace rose::sim
