// The table of workers: their capacity grants, and the use of each.
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

// Initial value of both durations of a Pace, in seconds. Their ratio is then 1, so that the figures
// of a new worker are trusted.
inline constexpr double kPacePriorS = 10;
inline constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();

struct CapacityGrant {
  std::int64_t epoch{0};
  std::int64_t kv_tokens{0};
  Nanoseconds deadline_ns{kNever};
  bool is_live{false};

  template <typename Image>
  void image(Image& image) {
    image(epoch, kv_tokens, deadline_ns, is_live);
  }
};

// Means of the measured and the predicted durations of turns; old durations fade.
struct Pace {
  double took_s{kPacePriorS};
  double foreseen_s{kPacePriorS};

  void observe(double took, double foreseen, double rate) noexcept {
    took_s += rate * (took - took_s);
    foreseen_s += rate * (foreseen - foreseen_s);
  }
  double ratio() const noexcept { return took_s / foreseen_s; }

  template <typename Image>
  void image(Image& image) {
    image(took_s, foreseen_s);
  }
};

struct Worker {
  WorkerId number{kNobody};  // kNobody: the slot is free
  WorkerKind kind{WorkerKind::kDedicated};
  std::size_t domain{0};  // index of the domain
  std::size_t job{0};     // index of the job
  DeviceId device{kOwnDevice};
  std::int64_t seats{0};
  std::int64_t version{0};
  CapacityGrant grant;
  std::int64_t used_tokens{0};
  std::int64_t backlog_tokens{0};  // prompt tokens of started turns, not computed yet
  std::int64_t restart_tokens{0};  // the part of backlog_tokens of turns that ran before
  std::int64_t prefill_tokens_per_s{0};
  Nanoseconds held_off_until_ns{0};
  bool is_held_off{false};  // starts nothing until held_off_until_ns
  bool is_draining{false};  // gets no more grants
  Pace pace;
  Caches caches;
  std::vector<TrajectoryId> held;  // in start order
  std::vector<std::size_t> peers;  // slots of all workers on its device, itself included

  template <typename Image>
  void image(Image& image) {
    image(number, kind, domain, job, device, seats, version, grant, used_tokens, backlog_tokens,
          restart_tokens, prefill_tokens_per_s, held_off_until_ns, is_held_off, is_draining, pace,
          caches, held, peers);
  }
};

// Inputs of placement, as columns with one value per slot. So a scan reads only the columns that it
// needs. Numbers are doubles for vector instructions; counts are exact in them.
struct WorkerColumns {
  std::vector<WorkerId> number;
  std::vector<WorkerKind> kind;
  std::vector<std::size_t> job;
  std::vector<std::size_t> domain;
  std::vector<double> room_tokens;   // room for starts; -1 without a grant or a seat
  std::vector<double> spare_tokens;  // room that no cache uses
  std::vector<double> grant_tokens;  // tokens granted to its device
  std::vector<double> turns;         // number of turns on its device
  std::vector<double> residents;     // number of turns and caches on its device
  std::vector<double> backlog_tokens;
  std::vector<double> context_tokens;   // held on its device, reservations included
  std::vector<double> restart_tokens;   // the part of backlog_tokens of turns that ran before
  std::vector<std::uint8_t> is_barred;  // its job is too far ahead of others on its device
  std::vector<double> version;
  std::vector<double> prefill_s_per_token;
  std::vector<double> step_s;
  std::vector<double> step_s_per_sequence;
  std::vector<double> step_s_per_context_token;
  std::vector<double> slowness;  // measured over predicted duration of its turns
  std::vector<double> hazard_per_s;
  // Seconds from the publication of a version to its commit on this worker, for the last such
  // commit; 0 before the first.
  std::vector<double> commit_s;

  std::size_t size() const noexcept { return number.size(); }

  template <typename Column>
  void each(Column&& column) {
    column(number, kind, job, domain, room_tokens, spare_tokens, grant_tokens, turns, residents,
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

// Capacity of a device for the workers on it. Each worker reports the whole device; the minimum
// over workers with a live grant holds for all of them.
struct Share {
  std::int64_t kv_tokens{0};  // granted; 0 without a live grant
  std::int64_t seats{0};
  std::int64_t used_tokens{0};
  std::int64_t backlog_tokens{0};
  std::int64_t restart_tokens{0};
  std::int64_t turns{0};
};

// Invariants:
//   1. A worker's epochs only rise, even if it is lost and rejoins; an ended epoch never revives.
//   2. used_tokens is the sum over held turns; no turn is held without a live grant.
//   3. The columns equal the records.
class WorkerTable {
 public:
  // `hazard_per_s`: initial revocation rate of a borrowed worker.
  explicit WorkerTable(double hazard_per_s) noexcept : hazard_per_s_{hazard_per_s} {}

  std::optional<std::size_t> find(WorkerId number) const noexcept;
  std::size_t size() const noexcept { return workers_.size(); }
  const Worker& operator[](std::size_t slot) const noexcept { return workers_[slot]; }
  const WorkerColumns& columns() const noexcept { return columns_; }
  // Free seats of a job's live grants; on a shared device another job may take them.
  std::int64_t free_seats(std::size_t job) const noexcept {
    return job < free_seats_.size() ? free_seats_[job] : 0;
  }
  // Tokens of a job's live grants; a shared device is divided equally.
  double lent_tokens(std::size_t job) const noexcept;
  // True if one of a job's workers holds a turn.
  bool has_turns(std::size_t job) const noexcept;
  // Calls `see` with each slot whose columns may have changed since the last call.
  template <typename See>
  void each_changed(See&& see) {
    for (const std::size_t slot : changed_) {
      is_changed_[slot] = 0;
      see(slot);
    }
    changed_.clear();
  }
  bool is_new_epoch(std::size_t slot, std::int64_t epoch) const noexcept;

  // `job`, `domain`: indices.
  void join(const WorkerJoined& event, std::size_t job = 0, std::size_t domain = 0);
  // New rates; the pace starts anew, since it corrects the old ones.
  void measure(std::size_t slot, const WorkerMeasured& event) noexcept;
  void drain(std::size_t slot) noexcept { workers_[slot].is_draining = true; }
  // The worker must hold no turns.
  void leave(std::size_t slot) noexcept;
  // For a new epoch no turn may be held. The same epoch renews and resizes the grant.
  void set_grant(std::size_t slot, const GrantChanged& event, Nanoseconds now_ns) noexcept;
  // Ends the grant for ever; releases and returns the held turns.
  std::vector<TrajectoryId> end_grant(std::size_t slot) noexcept;
  void set_version(std::size_t slot, std::int64_t version) noexcept;
  // Lets no grant expire before `until_ns`.
  void keep_grants(Nanoseconds until_ns) noexcept;
  std::vector<std::size_t> expired(Nanoseconds now_ns);

  void hold(std::size_t slot, TrajectoryId trajectory, std::int64_t tokens,
            std::int64_t prefill_tokens, std::int64_t restart_tokens = 0, CacheId uses = kNoCache);
  void release(std::size_t slot, TrajectoryId trajectory, std::int64_t tokens) noexcept;
  void compute(std::size_t slot, std::int64_t prefill_tokens,
               std::int64_t restart_tokens = 0) noexcept;
  // Caches `tokens` for a later turn; evicts the least recently used caches if needed.
  CacheId keep(std::size_t slot, std::int64_t tokens);
  void remove_cache(std::size_t slot, CacheId cache) noexcept;
  // Adds `tokens` to a held turn's reservation, even if there is no room. The caller must then
  // recall turns until the others fit.
  void grow(std::size_t slot, std::int64_t tokens) noexcept;

  void set_hazard(std::size_t slot, double per_s) noexcept {
    columns_.hazard_per_s[slot] = per_s;
    note_change(slot);
  }
  void set_barred(std::size_t slot, bool is_barred) noexcept {
    columns_.is_barred[slot] = is_barred ? 1 : 0;
    note_change(slot);
  }
  // Lets no turn start on the worker before `until_ns`.
  void hold_off(std::size_t slot, Nanoseconds until_ns, Nanoseconds now_ns) noexcept;
  // Ends holds that are over; true if there were any.
  bool take_back(Nanoseconds now_ns) noexcept;
  // Slots of the workers on devices that may be shared.
  const std::map<DeviceId, std::vector<std::size_t>>& devices() const noexcept { return devices_; }
  // Capacity and use of the worker's device.
  Share share(std::size_t slot) const noexcept;

  // The worker committed the newest version `after_ns` after its publication.
  void observe_commit(std::size_t slot, Nanoseconds after_ns) noexcept {
    columns_.commit_s[slot] = static_cast<double>(after_ns) / 1e9;
    note_change(slot);
  }

  // Records the measured and the predicted duration of a turn; earlier durations fade by `rate`.
  void observe_pace(std::size_t slot, double took_s, double foreseen_s, double rate) noexcept;

  // Makes the columns show no room on the worker's device, until show().
  void hide(std::size_t slot) noexcept;
  void show(std::size_t slot) noexcept { refresh(slot); }

  template <typename Image>
  void image(Image& image) {
    image(workers_, columns_, free_slots_, seats_left_, free_seats_, next_held_off_ns_, slots_,
          devices_, last_epochs_, next_deadline_ns_, mean_pace_);
  }
  bool is_in_bounds(std::size_t jobs, std::size_t domains);
  // Marks every slot as changed, for a reader that has seen none.
  void show_all() {
    for (std::size_t slot = 0; slot < workers_.size(); ++slot) note_change(slot);
  }

 private:
  std::size_t take_slot();
  void settle(std::size_t slot);
  void set_free_seats(std::size_t slot, std::int64_t seats) noexcept;
  void note_change(std::size_t slot) noexcept;
  // Recomputes the columns of all workers on the slot's device.
  void refresh(std::size_t slot) noexcept;

  double hazard_per_s_;
  std::vector<Worker> workers_;
  WorkerColumns columns_;
  std::vector<std::size_t> free_slots_;
  std::vector<std::int64_t> seats_left_;             // by slot
  std::vector<std::int64_t> free_seats_;             // by job: the sum over its workers
  std::unordered_map<WorkerId, std::size_t> slots_;  // never iterated
  std::map<DeviceId, std::vector<std::size_t>> devices_;
  std::unordered_map<WorkerId, std::int64_t> last_epochs_;  // of all workers that ever had a grant
  Nanoseconds next_deadline_ns_{kNever};                    // no live grant expires before it
  Pace mean_pace_;
  Nanoseconds next_held_off_ns_{kNever};  // lower bound for the end of a hold
  std::vector<std::size_t> changed_;      // slots, each once
  std::vector<std::uint8_t> is_changed_;  // by slot
};

}  // namespace rose::scheduler
