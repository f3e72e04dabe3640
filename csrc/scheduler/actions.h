// The scheduler's actions, to be carried out in order.
#pragma once

#include <cstdint>
#include <variant>

#include "scheduler/events.h"

namespace rose::scheduler {

// kRefused: its request is invalid for every worker. kLost: its workers were lost before it had a
// token. kVersion: every worker has weights that are newer than the turn accepts.
enum class DropReason : std::uint8_t { kFailed = 0, kGivenUp, kRefused, kLost, kVersion };
template <>
struct EnumSize<DropReason> {
  static constexpr std::size_t value = 5;
};

// A trajectory may start: its first TurnReady is accepted.
struct Admit {
  TrajectoryId trajectory;
};

// Run a turn, or the rest of a turn whose first `first_token` tokens are in the prompt already. If
// the turn's last token is among them (a stop token was delivered, but the report of the end was
// lost), the driver runs nothing, and answers with TurnEnded(kFinished).
struct Start {
  TrajectoryId trajectory;
  std::int64_t turn;
  WorkerId worker;
  std::int64_t grant_epoch;
  std::int64_t first_token;
  std::int64_t max_new_tokens;
};

// Recall a turn from a worker; a worker that does not have the turn ignores this.
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

// All tokens of a turn were delivered.
struct TurnDone {
  TrajectoryId trajectory;
  std::int64_t turn;
};

// Forget a trajectory; no event may name it any more.
struct Drop {
  TrajectoryId trajectory;
  DropReason reason;
};

using Action = std::variant<Admit, Start, Stop, Deliver, TurnDone, Drop>;

}  // namespace rose::scheduler
