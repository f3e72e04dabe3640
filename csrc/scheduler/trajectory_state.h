// The lifecycle of a trajectory, as a table of moves.
//
//   WAITING   created, but not yet admitted
//   ENV       in its environment: before the first turn, between turns, in a tool
//   QUEUED    its next turn, or the rest of one, waits for a worker
//   RUNNING   on one worker, under a live grant
//   RECALLED  leaving its worker, whose output is still accepted for a grace period
//   DONE      its environment is over; ready for the trainer
//   DROPPED   given up
//
// Only RUNNING and RECALLED have a worker, and RUNNING is reached from QUEUED alone, so a
// trajectory is on at most one worker.
#pragma once

#include <cstddef>
#include <cstdint>

#include "scheduler/image.h"

namespace rose::scheduler {

enum class TrajectoryState : std::uint8_t {
  kWaiting = 0,
  kEnv,
  kQueued,
  kRunning,
  kRecalled,
  kDone,
  kDropped,
};
inline constexpr std::size_t kTrajectoryStates = 7;
template <>
struct EnumSize<TrajectoryState> {
  static constexpr std::size_t value = kTrajectoryStates;
};

constexpr bool is_move(TrajectoryState from, TrajectoryState to) noexcept {
  using enum TrajectoryState;
  switch (from) {
    case kWaiting:
      return to == kEnv || to == kDropped;
    case kEnv:
      return to == kQueued || to == kDone;
    case kQueued:
      return to == kRunning || to == kEnv || to == kDropped;
    case kRunning:
      return to == kEnv || to == kQueued || to == kRecalled || to == kDropped;
    case kRecalled:
      return to == kEnv || to == kQueued || to == kDropped;
    case kDone:
    case kDropped:
      return false;
  }
  return false;
}

constexpr bool is_over(TrajectoryState state) noexcept {
  return state == TrajectoryState::kDone || state == TrajectoryState::kDropped;
}

constexpr bool is_on_worker(TrajectoryState state) noexcept {
  return state == TrajectoryState::kRunning || state == TrajectoryState::kRecalled;
}

}  // namespace rose::scheduler
