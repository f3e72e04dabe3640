// The book of workers: their leases, and what is held of each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "scheduler/caches.h"
#include "scheduler/events.h"

namespace rose::scheduler {

// Of a worker before a turn of it has finished: it is as fast as it says.
inline constexpr double kPacePriorS = 10;
inline constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();

struct Lease {
  std::int64_t epoch{0};
  std::int64_t kv_tokens{0};
  Nanoseconds deadline_ns{kNever};
  bool is_live{false};

  template <typename Image>
  void image(Image& image) {
    image(epoch, kv_tokens, deadline_ns, is_live);
  }
};

// How long turns took, and how long the figures of their workers foresaw; old ones fade.
struct Pace {
  double took_s{kPacePriorS};
  double foreseen_s{kPacePriorS};

  void observe(double took, double foreseen, double rate) noexcept {
    took_s += rate * (took - took_s);
    foreseen_s += rate * (foreseen - foreseen_s);
  }
  double ratio() const noexcept { return took_s / foreseen_s; }
  bool is_sound() const noexcept;

  template <typename Image>
  void image(Image& image) {
    image(took_s, foreseen_s);
  }
};

struct Worker {
  WorkerId number{kNobody};  // kNobody: the slot is free
  WorkerKind kind{WorkerKind::kDedicated};
  std::size_t domain{0};  // its place among the domains
  std::size_t job{0};     // its place among the jobs
  DeviceId device{kOwnDevice};
  std::int64_t seats{0};
  std::int64_t version{0};
  Lease lease;
  std::int64_t used_tokens{0};
  std::int64_t backlog_tokens{0};  // of prompts that were started and not yet computed
  std::int64_t restart_tokens{0};  // of them, those of turns that ran elsewhere before
  std::int64_t prefill_tokens_per_s{0};
  Nanoseconds held_off_until_ns{0};
  bool is_held_off{false};  // starts nothing until then
  Pace pace;
  Caches caches;
  std::vector<TrajectoryId> held;  // in the order of their starts
  std::vector<std::size_t> peers;  // the slots of the workers on its device, its own too

  template <typename Image>
  void image(Image& image) {
    image(number, kind, domain, job, device, seats, version, lease, used_tokens, backlog_tokens,
          restart_tokens, prefill_tokens_per_s, held_off_until_ns, is_held_off, pace, caches, held,
          peers);
  }
};

// What a placement looks at, one number per slot: a scan reads only what it needs, in order. All
// are doubles, so that a scan can take several at once; counts are exact in them.
struct WorkerColumns {
  std::vector<WorkerId> number;
  std::vector<WorkerKind> kind;
  std::vector<std::size_t> job;
  std::vector<std::size_t> domain;
  std::vector<double> room_tokens;   // what may still be started; -1 without a lease or a seat
  std::vector<double> spare_tokens;  // of the room, what no cache takes
  std::vector<double> lease_tokens;  // of its device
  std::vector<double> turns;         // on its device
  std::vector<double> residents;     // the turns, and the caches there
  std::vector<double> backlog_tokens;
  std::vector<double> context_tokens;   // that its device holds, and keeps for what will be said
  std::vector<double> restart_tokens;   // of the backlog, of turns that ran elsewhere before
  std::vector<std::uint8_t> is_barred;  // from its device, as its job is ahead of others there
  std::vector<double> version;
  std::vector<double> prefill_s_per_token;
  std::vector<double> step_s;
  std::vector<double> step_s_per_sequence;
  std::vector<double> step_s_per_context_token;
  std::vector<double> slowness;  // how many times as long as these figures say its turns take
  std::vector<double> hazard_per_s;
  // From the news of a version to its commit there, as seen last; 0 before it was seen.
  std::vector<double> commit_s;

  bool operator==(const WorkerColumns&) const = default;
  std::size_t size() const noexcept { return number.size(); }

  template <typename Column>
  void each(Column&& column) {
    column(number, kind, job, domain, room_tokens, spare_tokens, lease_tokens, turns, residents,
           backlog_tokens, context_tokens, restart_tokens, is_barred, version, prefill_s_per_token,
           step_s, step_s_per_sequence, step_s_per_context_token, slowness, hazard_per_s, commit_s);
  }
  template <typename Image>
  void image(Image& image) {
    each(image);
  }
  void resize(std::size_t size) {
    each([size](auto&... columns) { (columns.resize(size), ...); });
  }
  bool has_size(std::size_t size) {
    bool is_so = true;
    each([&](auto&... columns) { is_so = ((columns.size() == size) && ...); });
    return is_so;
  }
};

// What a device lends to the workers on it. Each says what the device has in all; the least that
// one with a live lease says holds for all of them.
struct Share {
  std::int64_t kv_tokens{0};  // lent; 0 without a live lease
  std::int64_t seats{0};
  std::int64_t used_tokens{0};
  std::int64_t backlog_tokens{0};
  std::int64_t restart_tokens{0};
  std::int64_t turns{0};
};

// Invariants:
//   1. A worker's epochs only go up, also when it is lost and joins again; a dead one stays dead.
//   2. used_tokens is the sum of what is held; nothing is held without a live lease.
//   3. The columns say what the records say.
class WorkerTable {
 public:
  // `hazard_per_s`: how often a borrowed worker's lease is revoked.
  explicit WorkerTable(double hazard_per_s) noexcept : hazard_per_s_{hazard_per_s} {}

  std::optional<std::size_t> find(WorkerId number) const noexcept;
  std::size_t size() const noexcept { return workers_.size(); }
  const Worker& operator[](std::size_t slot) const noexcept { return workers_[slot]; }
  const WorkerColumns& columns() const noexcept { return columns_; }
  // Seats of a job's live leases that nobody has; on a shared device another job may take them.
  std::int64_t free_seats(std::size_t job) const noexcept {
    return job < free_seats_.size() ? free_seats_[job] : 0;
  }
  // What live leases hold for a job; of a device that is shared, its part of equal ones.
  double lent_tokens(std::size_t job) const noexcept;
  // Whether one of a job's workers holds a turn.
  bool has_turns(std::size_t job) const noexcept;
  // Calls `see` with each slot whose columns may have changed since the last time.
  template <typename See>
  void each_changed(See&& see) {
    for (const std::size_t slot : changed_) {
      is_changed_[slot] = 0;
      see(slot);
    }
    changed_.clear();
  }
  bool is_new_epoch(std::size_t slot, std::int64_t epoch) const noexcept;

  // `job`, `domain`: their places.
  void join(const WorkerJoined& event, std::size_t job = 0, std::size_t domain = 0);
  // Nothing may be held of it any more.
  void leave(std::size_t slot) noexcept;
  // A new epoch: nothing may be held of the one before. The same: renew and resize.
  void set_lease(std::size_t slot, const LeaseChanged& event, Nanoseconds now_ns) noexcept;
  // Ends it for ever. What was held is no more; the caller gets it.
  std::vector<TrajectoryId> end_lease(std::size_t slot) noexcept;
  void set_version(std::size_t slot, std::int64_t version) noexcept;
  // No lease runs out before then.
  void keep_leases(Nanoseconds until_ns) noexcept;
  std::vector<std::size_t> expired(Nanoseconds now_ns);

  void hold(std::size_t slot, TrajectoryId trajectory, std::int64_t tokens,
            std::int64_t prefill_tokens, std::int64_t restart_tokens = 0, CacheId uses = kNoCache);
  void release(std::size_t slot, TrajectoryId trajectory, std::int64_t tokens) noexcept;
  void compute(std::size_t slot, std::int64_t prefill_tokens,
               std::int64_t restart_tokens = 0) noexcept;
  // So many tokens for a turn to come; the least lately used make room for them.
  CacheId keep(std::size_t slot, std::int64_t tokens);
  void remove_cache(std::size_t slot, CacheId cache) noexcept;
  // A turn that is held there takes so many tokens more. Whether there is room is for the caller.
  void grow(std::size_t slot, std::int64_t tokens) noexcept;

  void set_hazard(std::size_t slot, double per_s) noexcept {
    columns_.hazard_per_s[slot] = per_s;
    note_change(slot);
  }
  void set_barred(std::size_t slot, bool is_barred) noexcept {
    columns_.is_barred[slot] = is_barred ? 1 : 0;
    note_change(slot);
  }
  // Starts nothing there until then.
  void hold_off(std::size_t slot, Nanoseconds until_ns, Nanoseconds now_ns) noexcept;
  // Ends what was held off until now; true if that was anybody.
  bool take_back(Nanoseconds now_ns) noexcept;
  // The slots of the workers on devices that may be shared.
  const std::map<DeviceId, std::vector<std::size_t>>& devices() const noexcept { return devices_; }
  // Of the worker's device.
  Share share(std::size_t slot) const noexcept;

  // It committed the newest version so long after that was published.
  void observe_commit(std::size_t slot, Nanoseconds after_ns) noexcept {
    columns_.commit_s[slot] = static_cast<double>(after_ns) / 1e9;
    note_change(slot);
  }

  // A turn on a worker took so long, and so long was foreseen. What is forgotten of earlier ones
  // each time is `rate`.
  void observe_pace(std::size_t slot, double took_s, double foreseen_s, double rate) noexcept;

  // Shows no room on a worker's device, until show().
  void hide(std::size_t slot) noexcept;
  void show(std::size_t slot) noexcept { refresh(slot); }

  template <typename Image>
  void image(Image& image) {
    image(workers_, columns_, free_slots_, seats_left_, free_seats_, next_held_off_ns_, slots_,
          devices_, last_epochs_, next_deadline_ns_, mean_pace_);
  }
  // Whether every slot that something names is there, every job and domain is one of so many, and
  // the columns say what the records say. Every slot counts as changed then.
  bool is_sound(std::size_t jobs, std::size_t domains);

 private:
  bool are_records_sound(std::size_t jobs, std::size_t domains) const;
  bool are_slots_sound() const;
  bool are_columns_sound();
  std::size_t take_slot();
  void settle(std::size_t slot);
  void set_free_seats(std::size_t slot, std::int64_t seats) noexcept;
  void note_change(std::size_t slot) noexcept;
  // The columns of all workers on the device.
  void refresh(std::size_t slot) noexcept;

  double hazard_per_s_;
  std::vector<Worker> workers_;
  WorkerColumns columns_;
  std::vector<std::size_t> free_slots_;
  std::vector<std::int64_t> seats_left_;             // by slot
  std::vector<std::int64_t> free_seats_;             // by job: the sum over its workers
  std::unordered_map<WorkerId, std::size_t> slots_;  // looked up, never walked
  std::map<DeviceId, std::vector<std::size_t>> devices_;
  std::unordered_map<WorkerId, std::int64_t> last_epochs_;  // of everybody who ever had a lease
  Nanoseconds next_deadline_ns_{kNever};  // the earliest of a live lease, or earlier
  Pace mean_pace_;
  Nanoseconds next_held_off_ns_{kNever};  // the earliest end of such a time, or earlier
  std::vector<std::size_t> changed_;      // slots, each once
  std::vector<std::uint8_t> is_changed_;  // by slot
};

}  // namespace rose::scheduler
