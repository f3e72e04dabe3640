// The scheduler's actions, to be carried out in order. rose/scheduler/events.py describes their
// fields.
#pragma once

#include <cstdint>
#include <variant>

#include "scheduler/events.h"

namespace rose::scheduler {

enum class DropReason : std::uint8_t { kFailed = 0, kGivenUp };

struct Admit {
  TrajectoryId trajectory;
};

struct Start {
  TrajectoryId trajectory;
  std::int64_t turn;
  WorkerId worker;
  std::int64_t grant_epoch;
  std::int64_t first_token;
  std::int64_t max_new_tokens;
};

struct Stop {
  TrajectoryId trajectory;
  WorkerId worker;
  std::int64_t grant_epoch;
};

// Skips the first `skip` tokens of the TurnProgress at index `event` of this step, and takes the
// next `tokens` tokens.
struct Deliver {
  TrajectoryId trajectory;
  std::int64_t turn;
  std::int64_t event;
  std::int64_t skip;
  std::int64_t tokens;
};

struct TurnDone {
  TrajectoryId trajectory;
  std::int64_t turn;
};

struct Drop {
  TrajectoryId trajectory;
  DropReason reason;
};

// The order is that of the codes in rose/scheduler/core.py.
using Action = std::variant<Admit, Start, Stop, Deliver, TurnDone, Drop>;

}  // namespace rose::scheduler
