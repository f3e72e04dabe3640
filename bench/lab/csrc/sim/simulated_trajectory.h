// The simulated driver's record of a trajectory.
#pragma once

#include <cstdint>
#include <limits>

#include "sim/world.h"

namespace rose::sim {

inline constexpr std::int64_t kNone = -1;

enum class TrajectoryPhase : std::uint8_t { kNotCreated = 0, kWaiting, kAdmitted, kDone, kDropped };

struct SimulatedTrajectory {
  std::int64_t job{0};    // index in World::jobs
  std::int64_t index{0};  // within the job
  TrajectoryPhase phase{TrajectoryPhase::kNotCreated};
  std::int64_t turn{0};
  std::int64_t context_tokens{0};   // at the start of the current turn, its input included
  std::int64_t output_tokens{0};    // delivered output of the current turn
  std::int64_t computed_tokens{0};  // longest context computed on any worker
  // Oldest weight version that generated a token of the trajectory.
  std::int64_t version_min{std::numeric_limits<std::int64_t>::max()};
  std::int64_t revocation{kNone};  // index of the revocation that stopped it, until it runs again
  Nanoseconds started_ns{kNone};
  Nanoseconds done_ns{kNone};
};

}  // namespace rose::sim
