// A trajectory on its way, as the front of the scheduler keeps it.
#pragma once

#include <cstdint>
#include <limits>

#include "sim/world.h"

namespace rose::sim {

inline constexpr std::int64_t kNone = -1;

enum class FlightState : std::uint8_t { kNotCreated = 0, kWaiting, kFlying, kDone, kDropped };

struct Flight {
  std::int64_t job{0};    // place in World::jobs
  std::int64_t index{0};  // within the job
  FlightState state{FlightState::kNotCreated};
  std::int64_t turn{0};
  std::int64_t context_tokens{0};   // before the turn
  std::int64_t said_tokens{0};      // of the turn, delivered
  std::int64_t computed_tokens{0};  // the longest context that some worker had computed
  // The oldest weights that gave a token of it.
  std::int64_t version_min{std::numeric_limits<std::int64_t>::max()};
  std::int64_t revocation{kNone};  // that took it from its worker, until it runs again
  Nanoseconds started_ns{kNone};
  Nanoseconds done_ns{kNone};
};

}  // namespace rose::sim
