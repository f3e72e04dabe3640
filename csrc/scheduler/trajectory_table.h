// The table of live trajectories, and the only function that changes their state.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "base/clock.h"
#include "scheduler/events.h"
#include "scheduler/exposure.h"
#include "scheduler/predictor.h"
#include "scheduler/trajectory_state.h"
#include "scheduler/turn_queue.h"
#include "scheduler/worker_table.h"

namespace rose::scheduler {

// The worker on which a turn runs, or ran until its recall.
struct Run {
  std::size_t slot{0};  // slot of the worker; valid while is_held
  WorkerId worker{kNobody};
  WorkerKind kind{WorkerKind::kDedicated};
  std::int64_t grant_epoch{0};
  std::int64_t version{0};          // weight version at the start
  std::int64_t prefill_tokens{0};   // part of the worker's backlog, until the first progress
  Nanoseconds stall_at_ns{0};       // stalled if there is no progress before this time
  std::int64_t reserved_tokens{0};  // tokens of the grant that the turn reserves
  std::int64_t restart_tokens{0};   // prefill_tokens of a turn that ran before, else 0
  std::size_t domain{0};            // index of the worker's domain
  Exposed exposed{};                // contribution to that domain
  Nanoseconds started_ns{0};
  std::int64_t first_token{0};  // index within the turn of the first token generated here
  double foreseen_wait_s{0};    // predicted time to that token, by the worker's figures
  double foreseen_token_s{0};   // predicted time per token, by the worker's figures
  bool is_held{false};          // whether it counts against the worker's seats and tokens
  bool has_misfit{false};       // whether it has reported tokens of a version outside the range

  template <typename Image>
  void image(Image& image) {
    image(slot, worker, kind, grant_epoch, version, prefill_tokens, stall_at_ns, reserved_tokens,
          restart_tokens, domain, exposed, started_ns, first_token, foreseen_wait_s,
          foreseen_token_s, is_held, has_misfit);
  }
};

// The worker whose cache has the context. The cache ends with the grant and with the weights that
// computed it, and may be evicted between two turns.
struct Home {
  WorkerId worker{kNobody};
  std::int64_t grant_epoch{0};
  std::int64_t version{0};
  std::int64_t cached_tokens{0};
  CacheId cache{kNoCache};  // between turns; none while a turn uses it

  // True if grant and weights are still the same.
  bool is_at(const Worker& at) const noexcept {
    return at.number == worker && at.grant.is_live && at.grant.epoch == grant_epoch &&
           at.version == version;
  }
  bool is_warm(const Worker& at) const noexcept {
    return is_at(at) && (cache == kNoCache || at.caches.has(cache));
  }

  template <typename Image>
  void image(Image& image) {
    image(worker, grant_epoch, version, cached_tokens, cache);
  }
};

// For a while, an unfinished turn does not return to the grant that it left: the worker may be
// unable to run it, and a duplicate report of the first end would also end the second try.
struct Avoided {
  WorkerId worker{kNobody};
  std::int64_t grant_epoch{0};
  Nanoseconds until_ns{0};

  template <typename Image>
  void image(Image& image) {
    image(worker, grant_epoch, until_ns);
  }
};

struct Trajectory {
  TrajectoryId id{0};
  std::size_t job{0};  // index of the job
  TrajectoryState state{TrajectoryState::kWaiting};
  GroupId group{0};
  std::int64_t ticket{0};  // number of the job's trajectories created before this one
  // Number of the job's trajectories that were admitted before this one and not dropped by then.
  std::int64_t place_in_line{0};
  Nanoseconds started_ns{0};  // time of admission
  std::int64_t version_min{0};
  std::int64_t said_tokens{0};  // delivered, in all turns
  std::size_t life_number{0};   // in LifeLine, from admission on
  double life_s{0};             // predicted when its last turn was queued
  Nanoseconds turn_ns{0};       // start of the current turn; in ENV, end of the last one

  // The current turn, or in ENV the next one.
  std::int64_t turn{0};
  std::int64_t context_tokens{0};
  std::int64_t max_new_tokens{0};
  std::int64_t known_tokens{0};     // delivered
  std::int64_t tries{0};            // starts of the turn
  std::int64_t attempts{0};         // failed starts
  std::int64_t losses{0};           // workers lost in a row, each before a token of the turn
  VersionLimits accepted;           // versions that may generate its tokens
  std::int64_t computed_tokens{0};  // longest context computed on any worker

  LengthForecast forecast;  // made when the turn was queued
  QueueKey queue_key;       // while QUEUED
  Nanoseconds queued_ns{0};

  bool was_displaced{false};  // whether it lost a cache for lack of memory

  Run run;
  Home home;
  Avoided avoided;

  // The state RECALLED ends at this time. If the report of the turn's end arrived before some of
  // its tokens, RECALLED ends earlier, as soon as `awaited_tokens` tokens are known.
  Nanoseconds recalled_until_ns{0};
  std::int64_t awaited_tokens{kTokensUnknown};
  TurnEnd awaited_end{TurnEnd::kInterrupted};

  // Most tokens of a grant that the turn can take. A resume does not change it: known output
  // becomes part of the prompt.
  std::int64_t need_tokens() const noexcept { return context_tokens + max_new_tokens; }
  std::int64_t prompt_tokens() const noexcept { return context_tokens + known_tokens; }

  template <typename Image>
  void image(Image& image) {
    image(id, group, ticket, place_in_line, job, state, started_ns, version_min, said_tokens,
          life_number, life_s, turn_ns, turn, context_tokens, max_new_tokens, known_tokens, tries,
          attempts, losses, accepted, computed_tokens, forecast, queue_key, queued_ns,
          was_displaced, run, home, avoided, recalled_until_ns, awaited_tokens, awaited_end);
  }
};

// Number of trajectories that are prefetched together.
inline constexpr std::size_t kPrefetch = 16;

// Invariants:
//   1. Every change of state is in the table of moves.
//   2. count() is right for every state; trajectories that are over are counted and removed.
class TrajectoryTable {
 public:
  Trajectory* find(TrajectoryId id) noexcept;
  const Trajectory* find(TrajectoryId id) const noexcept;
  // Prefetches the result of find() into the processor's cache. In a burst of thousands of events,
  // all lookups miss the cache; a few that are prefetched together take the time of one.
  void prefetch(TrajectoryId id) const noexcept;
  Trajectory& create(TrajectoryId id, std::int64_t group = 0, std::size_t job = 0);
  // False, without a change, for a move that is not in the table. A trajectory that is over is
  // removed, which invalidates the reference.
  bool move(Trajectory& trajectory, TrajectoryState to, Nanoseconds now_ns);

  std::int64_t count(TrajectoryState state) const noexcept {
    return counts_[static_cast<std::size_t>(state)];
  }

  template <typename Image>
  void image(Image& image) {
    image(by_id_, counts_);
  }
  template <typename Predicate>
  std::int64_t count_if(const Predicate& is_so) const {
    return std::count_if(by_id_.begin(), by_id_.end(),
                         [&](const auto& entry) { return is_so(entry.second); });
  }
  template <typename Predicate>
  bool all(const Predicate& is_so) const {
    return std::all_of(by_id_.begin(), by_id_.end(),
                       [&](const auto& entry) { return is_so(entry.second); });
  }

 private:
  // Not iterated where order matters.
  std::unordered_map<TrajectoryId, Trajectory> by_id_;
  std::array<std::int64_t, kTrajectoryStates> counts_{};
};

}  // namespace rose::scheduler
