// The scheduler's input. rose/scheduler/events.py and worker.py describe the fields.
//
// Events of the driver must not contradict earlier ones; events of workers may be late, duplicated
// or obsolete.
#pragma once

#include <cstdint>
#include <variant>

#include "scheduler/image.h"

namespace rose::scheduler {

using WorkerId = std::int64_t;
using TrajectoryId = std::int64_t;
using GroupId = std::int64_t;
using JobId = std::int64_t;
using DeviceId = std::int64_t;

inline constexpr WorkerId kNobody = -1;
inline constexpr DeviceId kOwnDevice = -1;  // shared with no other worker
// Upper bound of valid counts. Their sums, and products with small numbers, fit 64 bits, and each
// count is exact as a double.
inline constexpr std::int64_t kCountMax = std::int64_t{1} << 40;
constexpr bool is_count(std::int64_t value) noexcept { return value >= 0 && value <= kCountMax; }
inline constexpr std::int64_t kTokensUnknown = -1;

enum class WorkerKind : std::uint8_t { kDedicated = 0, kBorrowed };
inline constexpr std::size_t kWorkerKinds = 2;
template <>
struct EnumSize<WorkerKind> {
  static constexpr std::size_t value = kWorkerKinds;
};

enum class TurnEnd : std::uint8_t { kFinished = 0, kInterrupted, kFailed };
template <>
struct EnumSize<TurnEnd> {
  static constexpr std::size_t value = 3;
};

struct WorkerJoined {
  WorkerId worker;
  WorkerKind kind;
  std::int64_t seats;
  double prefill_tokens_per_s;
  double decode_step_ms;
  double decode_ms_per_sequence;
  std::int64_t version;
  std::int64_t domain{0};
  JobId job{0};
  DeviceId device{kOwnDevice};
  double decode_ms_per_context_token{0};
};

struct GrantChanged {
  WorkerId worker;
  std::int64_t grant_epoch;
  std::int64_t kv_tokens;
  double ttl_ms;
};

struct WorkerLost {
  WorkerId worker;
};

struct VersionPublished {
  std::int64_t version;
  JobId job{0};
};

struct VersionCommitted {
  WorkerId worker;
  std::int64_t version;
};

struct TrajectoryCreated {
  TrajectoryId trajectory;
  GroupId group{0};
  JobId job{0};
};

struct TurnReady {
  TrajectoryId trajectory;
  std::int64_t turn;
  std::int64_t context_tokens;
  std::int64_t max_new_tokens;
};

struct TurnProgress {
  TrajectoryId trajectory;
  std::int64_t turn;
  WorkerId worker;
  std::int64_t grant_epoch;
  std::int64_t first_token;
  std::int64_t tokens;
  std::int64_t version_min;
};

struct TurnEnded {
  TrajectoryId trajectory;
  std::int64_t turn;
  WorkerId worker;
  std::int64_t grant_epoch;
  TurnEnd end;
  std::int64_t tokens;  // length of the turn so far, over all workers; or kTokensUnknown
};

struct TrajectoryEnded {
  TrajectoryId trajectory;
};

struct Consumed {
  std::int64_t trajectories;
  JobId job{0};
};

struct JobJoined {
  JobId job;
  std::int64_t batch_trajectories;
  std::int64_t max_staleness;
  double weight;
};

// The order is that of the codes in rose/scheduler/core.py.
using Event = std::variant<WorkerJoined, GrantChanged, WorkerLost, VersionPublished,
                           VersionCommitted, TrajectoryCreated, TurnReady, TurnProgress, TurnEnded,
                           TrajectoryEnded, Consumed, JobJoined>;

}  // namespace rose::scheduler
