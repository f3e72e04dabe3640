// What a simulation is made of. rose/sim/cluster/world.py says what each field means.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "scheduler/events.h"

namespace rose::sim {

using scheduler::TrajectoryId;
using scheduler::WorkerId;
using scheduler::WorkerKind;

struct StepTimes {
  double prefill_tokens_per_s{1};
  double decode_step_ms{1};
  double decode_ms_per_sequence{0};
  double decode_ms_per_context_token{0};
};

// Rows, each of which holds until the next; the first is at 0.
struct Lending {
  std::vector<Nanoseconds> at_ns;
  std::vector<double> share;
  std::vector<std::int64_t> kv_tokens;
};

struct WorkerSpec {
  WorkerId number{0};
  WorkerKind kind{WorkerKind::kDedicated};
  std::int64_t domain{0};
  scheduler::JobId job{0};
  StepTimes times;
  std::int64_t seats{1};
  std::int64_t kv_tokens{1};
  Nanoseconds start_up_ns{0};
  Nanoseconds update_ns{0};
  Nanoseconds pause_ns{0};
  Lending lending;  // empty for a dedicated worker
};

enum class TrainerMode : std::uint8_t { kSynchronous = 0, kOneStepOff, kAsynchronous };

struct JobSpec {
  scheduler::JobId job{0};
  std::vector<std::int64_t> first_turn;  // one more than there are trajectories
  std::vector<std::int64_t> heard_tokens;
  std::vector<std::int64_t> said_tokens;
  std::vector<Nanoseconds> tool_ns;
  std::vector<std::int64_t> group;
  TrainerMode mode{TrainerMode::kAsynchronous};
  std::int64_t batch{1};
  Nanoseconds train_ns{0};
  std::int64_t max_staleness{0};
  double weight{1};

  std::int64_t trajectories() const noexcept { return static_cast<std::int64_t>(group.size()); }
};

// How the simulation itself works.
struct Knobs {
  Nanoseconds tick_ns{50'000'000};                 // the front steps so often when nothing happens
  Nanoseconds gather_ns{1'000'000};                // from the first news to the step that hears it
  Nanoseconds borrowed_report_ns{1'000'000'000};   // a borrowed worker says so often what it has
  Nanoseconds dedicated_report_ns{4'000'000'000};  // nobody watches whether this one stalls
  std::int64_t chunk_tokens{2048};                 // of prompts that a step computes at most
  bool is_stepwise{false};  // every step of every engine is an event of its own
  bool is_logged{false};    // keep what the scheduler was told and what it said
};

struct World {
  std::vector<WorkerSpec> workers;
  std::vector<JobSpec> jobs;
  std::int64_t versions{1};
  Nanoseconds horizon_ns{0};
  Knobs knobs;
};

}  // namespace rose::sim
