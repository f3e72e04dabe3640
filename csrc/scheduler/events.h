// The scheduler's input. csrc/bind/scheduler.cpp binds these structs.
//
// Events of the driver must not contradict earlier ones. Events of workers may be late, duplicated
// or obsolete: GrantChanged, WorkerLost, VersionCommitted, TurnProgress and TurnEnded. The core
// only counts tokens; its driver keeps them.
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

enum class TurnEnd : std::uint8_t { kFinished = 0, kInterrupted, kFailed, kRefused };
template <>
struct EnumSize<TurnEnd> {
  static constexpr std::size_t value = 4;
};

// Versions of weights that may generate the tokens of a turn.
struct VersionLimits {
  std::int64_t min{0};
  std::int64_t max{kCountMax};

  bool has(std::int64_t version) const noexcept { return version >= min && version <= max; }
  bool has_all() const noexcept { return min <= 0 && max >= kCountMax; }

  template <typename Image>
  void image(Image& image) {
    image(min, max);
  }
};

// A worker joined; it may run turns once it reports a capacity grant. A lost worker may join again
// under its number, but its grant epochs must continue from the old ones, which never become valid
// again.
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
  double decode_ms_per_context_token{0};  // step time per context token of its turns
};

// The worker's rates were measured again. It keeps its turns.
struct WorkerMeasured {
  WorkerId worker;
  double prefill_tokens_per_s;
  double decode_step_ms;
  double decode_ms_per_sequence;
};

// The worker gets no more turns. Its turns are recalled and continue elsewhere.
struct WorkerDrained {
  WorkerId worker;
};

struct GrantChanged {
  WorkerId worker;
  std::int64_t grant_epoch;  // a higher number is a new grant; a lower one is ignored
  std::int64_t kv_tokens;    // 0 revokes the grant
  double ttl_ms;             // 0: unlimited
};

struct WorkerLost {
  WorkerId worker;
  bool is_crash{true};  // whether one of its turns may have ended it
};

// A job's trainer has published a version. A version that is not higher is ignored.
struct VersionPublished {
  std::int64_t version;
  JobId job{0};
};

struct VersionCommitted {
  WorkerId worker;
  std::int64_t version;
};

// A trajectory asks to start; Admit allows it. Its number was never used before.
struct TrajectoryCreated {
  TrajectoryId trajectory;
  GroupId group{0};
  JobId job{0};
};

// The next turn of an admitted trajectory may run.
struct TurnReady {
  TrajectoryId trajectory;
  std::int64_t turn;
  std::int64_t context_tokens;
  std::int64_t max_new_tokens;
  std::int64_t version_min{0};
  std::int64_t version_max{kCountMax};
};

// The turn is complete with its first `tokens` delivered tokens. Ignored if the turn has ended.
struct TurnCut {
  TrajectoryId trajectory;
  std::int64_t turn;
  std::int64_t tokens;
};

// A worker reports tokens of a turn; `first_token` is the index of the first one in the turn.
struct TurnProgress {
  TrajectoryId trajectory;
  std::int64_t turn;
  WorkerId worker;
  std::int64_t grant_epoch;
  std::int64_t first_token;
  std::int64_t tokens;
  std::int64_t version_min;  // the oldest version among the tokens
  std::int64_t version_max;  // the newest version among the tokens
};

// A turn left its worker. `tokens` shows whether this event overtook the turn's last tokens.
struct TurnEnded {
  TrajectoryId trajectory;
  std::int64_t turn;
  WorkerId worker;
  std::int64_t grant_epoch;
  TurnEnd end;
  std::int64_t tokens;  // length of the turn so far, over all workers; or kTokensUnknown
};

// A trajectory's environment has ended. During a turn this gives up the trajectory, and Drop
// follows.
struct TrajectoryEnded {
  TrajectoryId trajectory;
};

// A job's trainer has used or discarded `trajectories` more ended trajectories.
struct Consumed {
  std::int64_t trajectories;
  JobId job{0};
};

// A job joined or has new values. A job without this event has those of the settings, and weight 1.
struct JobJoined {
  JobId job;
  std::int64_t batch_trajectories;
  std::int64_t max_staleness;
  double weight;
};

// No turn starts until Resumed.
struct Paused {
  bool is_recalling;  // whether running turns are recalled
};

struct Resumed {};

using Event =
    std::variant<WorkerJoined, GrantChanged, WorkerLost, VersionPublished, VersionCommitted,
                 TrajectoryCreated, TurnReady, TurnProgress, TurnEnded, TrajectoryEnded, Consumed,
                 JobJoined, WorkerMeasured, WorkerDrained, TurnCut, Paused, Resumed>;

}  // namespace rose::scheduler
