// Results of a simulation, with its log.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "scheduler/actions.h"
#include "scheduler/events.h"
#include "sim/trainer.h"

namespace rose::sim {

struct JobOutcome {
  std::vector<Rollout> versions;
  std::vector<Nanoseconds> started_ns;  // kNone if never
  std::vector<Nanoseconds> done_ns;
  std::vector<std::int64_t> used_by;    // version that learned from the trajectory, or kNone
  std::vector<std::int64_t> staleness;  // in versions; kNone if neither used nor discarded
  std::int64_t tokens_delivered{0};
  std::int64_t dropped{0};
};

// One step of the scheduler.
struct LoggedStep {
  Nanoseconds now_ns;
  std::vector<scheduler::Event> events;
  std::vector<scheduler::Action> actions;
};

struct ClusterOutcome {
  std::vector<JobOutcome> jobs;
  Nanoseconds ended_ns{0};
  std::vector<std::int64_t> tokens_by_worker;
  std::vector<double> busy_ns_by_worker;
  std::int64_t revocations{0};
  std::int64_t recalls{0};
  std::int64_t reprefill_tokens{0};
  std::int64_t tokens_lost{0};
  std::vector<Nanoseconds> recovery_ns;  // kNone if not all turns restarted
  std::int64_t events{0};
  std::int64_t decisions{0};
  std::uint64_t digest{0};
  std::vector<LoggedStep> log;
};

}  // namespace rose::sim
