// Inputs of a simulation. bench/lab/rose_lab/sim/cluster/world.py documents the fields.
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

// Rows of a loan over time. Each row is valid until the next one starts; the first starts at 0.
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
  std::vector<std::int64_t> first_turn;  // trajectories + 1 entries
  std::vector<std::int64_t> input_tokens;
  std::vector<std::int64_t> output_tokens;
  std::vector<Nanoseconds> tool_ns;
  std::vector<std::int64_t> group;
  TrainerMode mode{TrainerMode::kAsynchronous};
  std::int64_t batch{1};
  Nanoseconds train_ns{0};
  std::int64_t max_staleness{0};
  double weight{1};

  std::int64_t trajectories() const noexcept { return static_cast<std::int64_t>(group.size()); }
};

// Settings of the simulation itself.
struct Knobs {
  Nanoseconds tick_ns{50'000'000};                 // interval of the driver's steps without events
  Nanoseconds gather_ns{1'000'000};                // from a first event to the step that handles it
  Nanoseconds borrowed_report_ns{1'000'000'000};   // report interval of a borrowed worker
  Nanoseconds dedicated_report_ns{4'000'000'000};  // longer, because its stalls are not monitored
  std::int64_t chunk_tokens{2048};                 // maximum prompt tokens per step
  bool is_stepwise{false};                         // every engine step is a separate event
  bool is_logged{false};                           // whether to log all events and actions
};

struct World {
  std::vector<WorkerSpec> workers;
  std::vector<JobSpec> jobs;
  std::int64_t versions{1};
  Nanoseconds horizon_ns{0};
  Knobs knobs;
};

}  // namespace rose::sim
