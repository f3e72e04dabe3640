// The book of trajectories, and the one door through which a trajectory changes its state.
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

// Where a turn runs, or ran until it was recalled.
struct Run {
  std::size_t slot{0};  // of the worker; means something while is_held
  WorkerId worker{kNobody};
  WorkerKind kind{WorkerKind::kDedicated};
  std::int64_t lease_epoch{0};
  std::int64_t version{0};          // of the weights it started with
  std::int64_t prefill_tokens{0};   // of the worker's backlog, until the first sign of life
  Nanoseconds stall_at_ns{0};       // without progress until then it counts as stalled
  std::int64_t reserved_tokens{0};  // of the lease
  std::int64_t restart_tokens{0};   // of prefill_tokens, those of a turn that ran before
  std::size_t domain{0};            // the place of the worker's
  Exposed exposed{};                // what it adds there
  Nanoseconds started_ns{0};
  std::int64_t first_token{0};  // of the turn, said here
  double foreseen_wait_s{0};    // until then, as the worker's figures say
  double foreseen_token_s{0};   // for each token, likewise
  bool is_held{false};          // whether it counts against the worker's seats and tokens

  template <typename Image>
  void image(Image& image) {
    image(slot, worker, kind, lease_epoch, version, prefill_tokens, stall_at_ns, reserved_tokens,
          restart_tokens, domain, exposed, started_ns, first_token, foreseen_wait_s,
          foreseen_token_s, is_held);
  }
};

// Whose cache has the context: it dies with the lease, and with the weights that computed it, and
// may be forgotten for others between two turns.
struct Home {
  WorkerId worker{kNobody};
  std::int64_t lease_epoch{0};
  std::int64_t version{0};
  std::int64_t cached_tokens{0};
  CacheId cache{kNoCache};  // there, between turns; none while a turn uses it

  // Whether the lease and the weights are still those.
  bool is_at(const Worker& at) const noexcept {
    return at.number == worker && at.lease.is_live && at.lease.epoch == lease_epoch &&
           at.version == version;
  }
  bool is_warm(const Worker& at) const noexcept {
    return is_at(at) && (cache == kNoCache || at.caches.has(cache));
  }

  template <typename Image>
  void image(Image& image) {
    image(worker, lease_epoch, version, cached_tokens, cache);
  }
};

// A turn that left a worker unfinished does not come back under the same lease for a while: the
// worker may be unable, and a doubled report of the first end would end the second try too.
struct Avoided {
  WorkerId worker{kNobody};
  std::int64_t lease_epoch{0};
  Nanoseconds until_ns{0};

  template <typename Image>
  void image(Image& image) {
    image(worker, lease_epoch, until_ns);
  }
};

struct Trajectory {
  TrajectoryId id{0};
  std::size_t job{0};  // its place among the jobs
  TrajectoryState state{TrajectoryState::kWaiting};
  GroupId group{0};
  std::int64_t ticket{0};  // how many of its job were created before
  std::int64_t place_in_line{
      0};                     // how many of its job were admitted before and not dropped by then
  Nanoseconds started_ns{0};  // when it was admitted
  std::int64_t version_min{0};
  std::int64_t said_tokens{0};  // delivered, in all turns
  std::size_t life_number{0};   // in the line of lives, from its admission on
  double life_s{0};             // predicted when its last turn was queued
  Nanoseconds turn_ns{0};       // when the turn at hand came; in ENV, when the last was over

  // The turn at hand, or in ENV the next one.
  std::int64_t turn{0};
  std::int64_t context_tokens{0};
  std::int64_t max_new_tokens{0};
  std::int64_t known_tokens{0};     // delivered
  std::int64_t tries{0};            // starts of the turn
  std::int64_t attempts{0};         // of them, those that failed
  std::int64_t computed_tokens{0};  // the longest context that some worker had computed

  Forecast forecast;   // as of when the turn was queued
  QueueKey queue_key;  // while QUEUED
  Nanoseconds queued_ns{0};

  bool was_displaced{false};  // it left a cache for want of room

  Run run;
  Home home;
  Avoided avoided;

  // RECALLED until then, or until `awaited_tokens` are known if the end has come before them.
  Nanoseconds recalled_until_ns{0};
  std::int64_t awaited_tokens{kTokensUnknown};
  TurnEnd awaited_end{TurnEnd::kInterrupted};

  // What it may take of a lease. A resumed turn may take the same: what it has said is context now.
  std::int64_t need_tokens() const noexcept { return context_tokens + max_new_tokens; }
  std::int64_t prompt_tokens() const noexcept { return context_tokens + known_tokens; }
  bool is_sound() const noexcept;

  template <typename Image>
  void image(Image& image) {
    image(id, group, ticket, place_in_line, job, state, started_ns, version_min, said_tokens,
          life_number, life_s, turn_ns, turn, context_tokens, max_new_tokens, known_tokens, tries,
          attempts, computed_tokens, forecast, queue_key, queued_ns, was_displaced, run, home,
          avoided, recalled_until_ns, awaited_tokens, awaited_end);
  }
};

// So many are loaded together.
inline constexpr std::size_t kPrefetch = 16;

// Invariants:
//   1. Every change of state is in the table of moves.
//   2. count() is right for every state; what is over is counted and forgotten.
class TrajectoryTable {
 public:
  Trajectory* find(TrajectoryId id) noexcept;
  const Trajectory* find(TrajectoryId id) const noexcept;
  // Begins to load what find() will return. In a burst of thousands none is in a cache, and a few
  // that are asked for together come in the time of one; changes nothing.
  void prefetch(TrajectoryId id) const noexcept;
  Trajectory& create(TrajectoryId id, std::int64_t group = 0, std::size_t job = 0);
  // False, and nothing changes, for a move that is not in the table. When it is over the trajectory
  // is gone, and `trajectory` with it.
  bool move(Trajectory& trajectory, TrajectoryState to, Nanoseconds now_ns);

  std::int64_t count(TrajectoryState state) const noexcept {
    return counts_[static_cast<std::size_t>(state)];
  }

  template <typename Image>
  void image(Image& image) {
    image(by_id_, counts_);
  }
  // Whether each has one of `jobs` jobs and, if it holds something, one of `slots` slots and of
  // `domains` domains.
  bool is_sound(std::size_t jobs, std::size_t slots, std::size_t domains) const noexcept;
  template <typename Predicate>
  bool all(const Predicate& is_so) const {
    return std::all_of(by_id_.begin(), by_id_.end(),
                       [&](const auto& entry) { return is_so(entry.second); });
  }

 private:
  // Looked up, never walked: its order must not show.
  std::unordered_map<TrajectoryId, Trajectory> by_id_;
  std::array<std::int64_t, kTrajectoryStates> counts_{};
};

}  // namespace rose::scheduler
