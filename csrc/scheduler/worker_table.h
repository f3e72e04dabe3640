// The book of workers: their leases, and what is held of each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "scheduler/events.h"

namespace rose::scheduler {

inline constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();

struct Lease {
  std::int64_t epoch{0};
  std::int64_t kv_tokens{0};
  Nanoseconds deadline_ns{kNever};
  bool is_live{false};
};

struct Worker {
  WorkerId number{kNobody};  // kNobody: the slot is free
  WorkerKind kind{WorkerKind::kDedicated};
  std::int64_t domain{0};
  std::size_t job{0};  // its place among the jobs
  DeviceId device{kOwnDevice};
  std::int64_t seats{0};
  std::int64_t version{0};
  Lease lease;
  std::int64_t used_tokens{0};
  std::int64_t backlog_tokens{0};  // of prompts that were started and not yet computed
  std::vector<TrajectoryId> held;  // in the order of their starts
  std::vector<std::size_t> peers;  // the slots of the workers on its device, its own too
};

// What a placement looks at, one number per slot: a scan reads only what it needs, in order. All
// are doubles, so that a scan can take several at once; counts are exact in them.
struct WorkerColumns {
  std::vector<WorkerId> number;
  std::vector<WorkerKind> kind;
  std::vector<std::size_t> job;
  std::vector<double> room_tokens;   // what may still be started; -1 without a lease or a seat
  std::vector<double> lease_tokens;  // of its device
  std::vector<double> turns;         // on its device
  std::vector<double> backlog_tokens;
  std::vector<double> version;
  std::vector<double> prefill_s_per_token;
  std::vector<double> step_s;
  std::vector<double> step_s_per_sequence;
  std::vector<double> hazard_per_s;

  std::size_t size() const noexcept { return number.size(); }
};

// What a device lends to the workers on it. Each says what the device has in all; the least that
// one with a live lease says holds for all of them.
struct Share {
  std::int64_t kv_tokens{0};  // lent; 0 without a live lease
  std::int64_t seats{0};
  std::int64_t used_tokens{0};
  std::int64_t backlog_tokens{0};
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
  // The earliest deadline of a live lease, or earlier.
  Nanoseconds next_deadline_ns() const noexcept { return next_deadline_ns_; }
  bool is_new_epoch(std::size_t slot, std::int64_t epoch) const noexcept;

  // `job`: its place among the jobs.
  void join(const WorkerJoined& event, std::size_t job = 0);
  // Nothing may be held of it any more.
  void leave(std::size_t slot) noexcept;
  // A new epoch: nothing may be held of the one before. The same: renew and resize.
  void set_lease(std::size_t slot, const LeaseChanged& event, Nanoseconds now_ns) noexcept;
  // Ends it for ever. What was held is no more; the caller gets it.
  std::vector<TrajectoryId> end_lease(std::size_t slot) noexcept;
  void set_version(std::size_t slot, std::int64_t version) noexcept;
  std::vector<std::size_t> expired(Nanoseconds now_ns);

  void hold(std::size_t slot, TrajectoryId trajectory, std::int64_t tokens,
            std::int64_t prefill_tokens);
  void release(std::size_t slot, TrajectoryId trajectory, std::int64_t tokens) noexcept;
  void compute(std::size_t slot, std::int64_t prefill_tokens) noexcept;
  // A turn that is held there takes so many tokens more. Whether there is room is for the caller.
  void grow(std::size_t slot, std::int64_t tokens) noexcept;

  // Of the worker's device.
  Share share(std::size_t slot) const noexcept;

  // Shows no room on a worker's device, until show().
  void hide(std::size_t slot) noexcept;
  void show(std::size_t slot) noexcept { refresh(slot); }

 private:
  std::size_t take_slot();
  void settle(std::size_t slot);
  void set_free_seats(std::size_t slot, std::int64_t seats) noexcept;
  // The columns of all workers on the device.
  void refresh(std::size_t slot) noexcept;

  double hazard_per_s_;
  std::vector<Worker> workers_;
  WorkerColumns columns_;
  std::vector<std::size_t> free_slots_;
  std::vector<std::int64_t> seats_left_;             // by slot
  std::vector<std::int64_t> free_seats_;             // by job: the sum over its workers
  std::unordered_map<WorkerId, std::size_t> slots_;  // looked up, never walked
  std::unordered_map<DeviceId, std::vector<std::size_t>> devices_;  // shared ones; the same
  std::unordered_map<WorkerId, std::int64_t> last_epochs_;  // of everybody who ever had a lease
  Nanoseconds next_deadline_ns_{kNever};
};

}  // namespace rose::scheduler
