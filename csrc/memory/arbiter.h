// Records the owner of every slab of a pool, lends slabs, and takes them back in time.
#pragma once

#include <atomic>
#include <compare>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "memory/block_allocator.h"
#include "memory/partition.h"
#include "memory/pool.h"
#include "memory/remote_holder.h"
#include "memory/slab_table.h"
#include "memory/tenant_line.h"

namespace rose::memory {

using LeaseId = std::uint64_t;
using RevocationId = std::uint64_t;

struct Grant {
  LeaseId lease_id{0};
  std::uint64_t lease_epoch{0};
  std::vector<SlabId> slabs;
};
enum class GrantRefusal : std::uint8_t {
  kPoolEmpty,
  kOverLimit,
  kAtRisk,  // the remaining slabs would not cover another reserve or the lender's demand
};
// The state of the pool when a loan is requested.
struct LoanRequest {
  std::uint64_t epoch{0};
  PartitionId borrower{kNobody};
  std::int32_t slabs{0};        // requested, > 0
  std::int32_t unowned{0};      // in slabs
  std::int64_t free_blocks{0};  // free blocks of the lender
};
// Decides how many of the requested slabs `lender` can spare. Called under the arbiter's mutex, so
// nothing changes before the slabs are granted. Implementations must keep the rules of
// MoveObserver.
class Admission {
 public:
  explicit Admission(PartitionId lender_id) noexcept : lender{lender_id} {}
  virtual ~Admission() = default;
  // Returns how many slabs may be lent, at most `supply.slabs`; 0 refuses the loan.
  virtual Result<std::int32_t> admit(const LoanRequest& supply) noexcept = 0;

  const PartitionId lender;
};
// The loan, or the reason for its refusal.
struct GrantAnswer {
  Grant grant;  // empty after a refusal
  std::optional<GrantRefusal> refusal;
};

// Any result but kRenewed means that nothing has changed.
enum class RenewAnswer : std::uint8_t {
  kRenewed,
  kStaleEpoch,  // the lease has another lease_epoch
  kRevoking,    // all slabs are being revoked
  kOver,        // returned, fenced, past its TTL, or never granted
};

// Numbers of slabs. `wanted` may exceed the sum of the others: a revocation can be partial.
struct RevocationProgress {
  std::int32_t wanted{0};
  std::int32_t returned{0};
  std::int32_t pending{0};
  std::int32_t fenced{0};
};

// A slab that could be revoked.
struct Candidate {
  SlabId slab{kNoSlab};
  std::int32_t used{0};
  std::int32_t pins{0};
};

enum class MoveKind : std::uint8_t { kTake, kGiveBack, kGrant, kReturn, kQuarantine, kProve };

inline constexpr PartitionId kInQuarantine = -2;

// One change of ownership: `slabs` is the number of slabs that moved from one partition to another.
// Instead of a partition, kNobody stands for unowned slabs and kInQuarantine for quarantined ones.
// `epoch` is the arbiter's epoch after the change.
struct Move {
  MoveKind kind{};
  PartitionId from_partition{kNobody};
  PartitionId to_partition{kNobody};
  std::int32_t slabs{0};
  LeaseId lease_id{0};
  std::uint64_t epoch{0};
};

// Receives every change of ownership, in order, under the arbiter's mutex. It must be quick, must
// not call the arbiter, and must not wait for a lock that a caller of the arbiter may hold.
class MoveObserver {
 public:
  virtual ~MoveObserver() = default;
  virtual void on_move(const Move& move) noexcept = 0;
};

struct PartitionSnapshot {
  Partition partition;
  std::int64_t free_blocks{0};
  std::int64_t used_blocks{0};
  // Lent slabs that revoke() would return at once.
  std::int32_t revocable_now{0};
  std::int32_t in_revocation{0};
};

struct Snapshot {
  std::uint64_t epoch{0};
  std::int32_t unowned{0};
  std::int32_t quarantined{0};
  std::vector<PartitionSnapshot> partitions;
};

// Lends slabs and takes them back. slab_state.h has the table of a slab's states; in short:
//
//   own memory   UNOWNED -> OWNED -> RETURNED -> UNOWNED
//   a loan       UNOWNED -> GRANTED -> REVOKING -> QUIESCED -> RETURNED -> OWNED by the taker
//   a late loan  ... REVOKING -> FENCED -> QUARANTINED -> RETURNED -> UNOWNED
//
// Thread rule: any thread. One mutex guards the records and the allocators of all partitions. It is
// held for microseconds, and during no system call except waking a waiter, ringing a tenant's bell
// (an eventfd) and, in check_invariants(), mapping the ledger.
//
// Invariants:
//   1. No slab has two owners; free + owned + quarantined = all.
//   2. unowned >= the sum of all partitions' shortfalls: a reserve can always be filled.
//   3. A partition never holds more than its limit, quarantined slabs included.
//   4. A slab with a pin or a block in use never changes owner. It can go into quarantine, and
//      stays there until its old owner is proven to have finished.
//   5. A REVOKING slab has a block in use or a pin; otherwise it would be returned. There are two
//      exceptions: a tenant in another process may have left the slab since the last sweep(), and
//      rose itself may be zeroing it, see clean().
//   6. A lease that was returned or fenced never comes back; a stale lease_epoch changes nothing.
//   7. Every change of ownership advances `epoch`.
class Arbiter final : private SlabWatcher {
 public:
  // `observer` may be null.
  static Result<std::unique_ptr<Arbiter>> create(Pool pool, std::shared_ptr<const Clock> clock,
                                                 std::shared_ptr<MoveObserver> observer) noexcept;
  Arbiter(const Arbiter&) = delete;
  Arbiter& operator=(const Arbiter&) = delete;
  ~Arbiter() = default;

  const Pool& pool() const noexcept { return pool_; }
  const Clock& clock() const noexcept { return *clock_; }
  Result<FileDescriptor> share_ledger() const noexcept;

  // ---- partitions

  // InvalidArgument if all reserves together exceed the pool. Unavailable while too few slabs are
  // free for this reserve, or while kPartitionsMax partitions have a record in the ledger: a
  // dropped partition keeps its record until all its slabs have returned.
  Result<PartitionId> add_partition(std::string name, std::int32_t reserve_slabs,
                                    std::int32_t limit_slabs) noexcept;
  // Drops the partition of a tenant that is gone: its idle slabs return at once, and the rest go
  // into quarantine. A second call changes nothing.
  Status drop_partition(PartitionId partition) noexcept;
  // Reopens a dropped partition for the next tenant, with the same reserve. Unavailable until all
  // slabs of the last tenant have returned, and while the reserve cannot be filled.
  Status reopen_partition(PartitionId partition, std::int32_t limit_slabs) noexcept;
  // Adds the partition's only allocator, which lives as long as the arbiter.
  Result<BlockAllocator*> add_allocator(PartitionId partition, BlockGeometry geometry) noexcept;

  // ---- tenants of other processes

  // Creates the connection to a tenant that will use a partition's slabs from another process.
  Result<std::shared_ptr<TenantLine>> add_tenant(PartitionId partition,
                                                 Notify notify_at = Notify::kAtGrant) noexcept;
  // Reads the tenant's mailbox, takes back the slabs that the tenant left or returned, and returns
  // their number. The tenant need not ring first; a second call changes nothing.
  Result<std::int32_t> sweep(PartitionId partition) noexcept;
  // The same for one slab, which the tenant has just left.
  Status sweep_slab(PartitionId partition, SlabId slab) noexcept;
  // Takes everything back from a tenant whose process is proven gone: its slabs are usable again,
  // its leases end, and its partition is dropped. Returns the number of slabs taken back; a second
  // call changes nothing.
  Result<std::int32_t> lose_tenant(PartitionId partition) noexcept;
  // Returns the line to the partition's tenant; the watch of that tenant needs it.
  Result<std::shared_ptr<TenantLine>> line_of(PartitionId partition) const noexcept;

  // ---- own memory

  // Takes up to n unowned slabs, within the partition's limit and the other partitions' reserves.
  Result<std::vector<SlabId>> take(PartitionId partition, std::int32_t n) noexcept;
  // Gives back up to n idle slabs that exceed the reserve. Returns how many.
  Result<std::int32_t> give_back(PartitionId partition, std::int32_t n) noexcept;

  // ---- loans

  std::uint64_t epoch() const noexcept;
  // Grants n slabs, all or none. First n is lowered so that the partition holds at most `held_max`
  // slabs after the grant, quarantined ones included. With an `admission`, n is then lowered to the
  // number that the admission allows. The grant is refused if the admission's lender is watched and
  // would be short afterwards (see watch()).
  Result<GrantAnswer> grant(
      PartitionId partition, std::int32_t n, Nanoseconds ttl_ns, Admission* admission = nullptr,
      std::int32_t held_max = std::numeric_limits<std::int32_t>::max()) noexcept;
  // Zeros a lent slab before its tenant uses any of its blocks; a tenant with kWhenClean is
  // notified afterwards. False if the slab is not lent, or was revoked meanwhile; a revocation
  // waits until the zeros are written. No lock is held while zeros are written. After
  // DeadlineExceeded the device may still write zeros, so nobody can use the slab until
  // prove_completion(). InvalidArgument if the tenant was already notified of the slab, because the
  // tenant may be using it.
  Result<bool> clean(PartitionId partition, SlabId slab) noexcept;
  // Extends the lease to `ttl_ns` from now.
  Result<RenewAnswer> renew(LeaseId lease_id, std::uint64_t lease_epoch,
                            Nanoseconds ttl_ns) noexcept;
  // Must be called periodically. Fences slabs past their deadline, revokes leases past their TTL
  // with a deadline `grace_ns` from now, and updates blocks and pins in the ledger. Returns the
  // revocations that it started.
  Result<std::vector<RevocationId>> expire(Nanoseconds grace_ns) noexcept;

  // ---- taking back

  // Returns the lent slabs of a partition.
  Result<std::vector<Candidate>> candidates(PartitionId partition) const noexcept;
  // Revokes up to n lent slabs, in this order:
  //   1. slabs without blocks or pins, which return within this call,
  //   2. the others, by ascending rank (the tenant's hint), then by ascending number of blocks in
  //      use.
  // A slab goes to `taker`; it becomes unowned if `taker` is -1, was dropped or is at its limit, or
  // if another partition's reserve needs the slab.
  Result<RevocationId> revoke(PartitionId partition, std::int32_t n, Nanoseconds deadline_ns,
                              PartitionId taker) noexcept;
  // Returns the progress of a revocation. After its deadline, the call also fences the pending
  // slabs. InvalidArgument for a completed revocation that was forgotten because kRevocationsKept
  // newer ones exist.
  Result<RevocationProgress> poll(RevocationId revocation) noexcept;
  // As poll(), but waits until nothing is pending, or for `timeout_ns` of real time.
  Result<RevocationProgress> wait(RevocationId revocation, Nanoseconds timeout_ns) noexcept;
  // Makes the quarantined slabs of a partition usable again, and returns their number. The caller
  // must know that the tenant's work is complete: its process is dead, or its stream has drained.
  Result<std::int32_t> prove_completion(PartitionId partition) noexcept;

  // ---- watching a partition for a shortage (watch.cpp)

  // Watches `partition` for a shortage. `demand_blocks`: free blocks that the partition may need
  // before a loan returns; 0 ends the watch. `blocks_per_slab`: blocks of the partition in a slab.
  // The partition is short while something is lent and its free blocks, together with those of
  // unowned slabs, are fewer than `demand_blocks`. Returns whether the partition is short, or will
  // be after taking `taking` blocks. One partition is watched at a time.
  //
  // After each call of watch(), the bell rings at most once: in the first allocation that makes the
  // partition short or finds it short. listen() waits for the bell.
  Result<bool> watch(PartitionId partition, std::int64_t demand_blocks,
                     std::int32_t blocks_per_slab, std::int64_t taking) noexcept;
  // Returns whether the partition is short, for the demand of the last watch(), or will be after
  // taking `taking` blocks. Does not arm the bell.
  Result<bool> is_short(PartitionId partition, std::int64_t taking) const noexcept;
  // Sleeps until the bell has rung more than `seen` times, or for `timeout_ns` of real time.
  // Returns the number of rings.
  //
  // Repeated calls prove that this process runs. A long gap between them means that the process was
  // stopped or the machine slept, and does not count against tenants (see note_standstill()). The
  // last call must have a `timeout_ns` of 0, so that the time after it does not count as a gap.
  std::uint32_t listen(std::uint32_t seen, Nanoseconds timeout_ns) noexcept;
  void ring() noexcept;

  // ---- numbers

  Snapshot snapshot() const noexcept;
  // Recounts everything; for tests and idle moments.
  Status check_invariants() const noexcept;

  static constexpr std::size_t kRevocationsKept = 1024;

 private:
  struct Lease {
    PartitionId partition;
    std::uint64_t lease_epoch;
    Nanoseconds expires_ns;
    std::int32_t granted;   // slabs that are not being revoked
    std::int32_t revoking;  // slabs that are being revoked
    bool is_fenced{false};
  };
  struct Revocation {
    PartitionId partition;
    PartitionId taker;
    Nanoseconds deadline_ns;
    RevocationProgress progress;
  };

  struct Watch {
    PartitionId partition{kNobody};
    std::int64_t demand_blocks{0};
    std::int32_t blocks_per_slab{0};
    bool is_armed{false};  // the bell has not rung since watch()
  };

  enum class Scrub : std::uint8_t {
    kNone,
    kRuns,
    kLate,  // it timed out, and the device may still write
  };

  // A lent slab with blocks or pins. Slabs are revoked in ascending order, field by field.
  struct Busy {
    std::uint32_t rank;  // the tenant's hint
    std::int32_t used;
    SlabId slab;
    auto operator<=>(const Busy&) const = default;
  };

  // Slabs of one lease that return in one call, and are reported to the observer as one Move.
  struct Homecoming {
    LeaseId lease_id{0};
    Lease* lease{nullptr};
    PartitionId from{kNobody};
    PartitionId to{kNobody};
    std::int32_t slabs{0};  // not yet reported to the observer
  };
  // Data of a partition besides its counts of slabs.
  struct Account {
    std::int32_t leases{0};
    RevocationId newest_revocation{0};
  };

  // Holds the mutex; its destructor publishes the changes in the ledger and notifies tenants.
  class Transaction {
   public:
    explicit Transaction(Arbiter& arbiter) noexcept : arbiter_{arbiter}, lock_{arbiter.books_} {
      arbiter_.note_standstill();
    }
    ~Transaction() { arbiter_.show(); }

   private:
    Arbiter& arbiter_;
    std::lock_guard<std::mutex> lock_;
  };

  Arbiter(Pool pool, SlabTable slabs, std::shared_ptr<const Clock> clock,
          std::shared_ptr<MoveObserver> observer) noexcept;

  static Status check_duration(const char* name, Nanoseconds value, Nanoseconds least) noexcept;

  // All methods below need the mutex.
  Status on_slab_idle(SlabId slab) noexcept override;
  void on_blocks_taken(const SlabHolder& taker) noexcept override;
  bool is_of_watched(const SlabHolder& taker) const noexcept {
    return holder_of(watch_.partition) == &taker;
  }
  // Number of free blocks below which the watched partition is short, with `unowned` unowned slabs.
  std::int64_t low_water(std::int32_t unowned) const noexcept {
    return watch_.demand_blocks - std::int64_t{unowned} * watch_.blocks_per_slab;
  }
  // While somebody listens, transactions follow each other within milliseconds. A much longer gap
  // means that this process stood still; deadlines and TTLs are then extended by the gap.
  void note_standstill() noexcept;
  Result<std::int32_t> admitted(Admission& admission, PartitionId id, std::int32_t n) noexcept;
  void show() noexcept;
  void note_news() noexcept;
  Nanoseconds due_ns(PartitionId id) const noexcept;
  PartitionRecord* free_place() noexcept;
  Status check_known(PartitionId partition) const noexcept;
  Status check_live(PartitionId partition) const noexcept;
  Partition& partition(PartitionId id) noexcept {
    return partitions_[static_cast<std::size_t>(id)];
  }
  SlabHolder* holder_of(PartitionId id) const noexcept {
    return holders_[static_cast<std::size_t>(id)].get();
  }
  std::int32_t spare_for(PartitionId asking) const noexcept {
    return memory::spare_for(partitions_, asking, slabs_.unowned());
  }
  bool is_idle(SlabId slab) const noexcept;
  Scrub& scrub_of(SlabId slab) noexcept { return scrubs_[static_cast<std::size_t>(slab)]; }
  bool is_in_scrub(SlabId slab) const noexcept {
    return scrubs_[static_cast<std::size_t>(slab)] != Scrub::kNone;
  }
  Candidate candidate(SlabId slab) const noexcept;
  Status hand_out(SlabId slab, SlabState to, const Hold& hold) noexcept;
  void announce(Move move) noexcept;

  void choose_victims(PartitionId from, std::int32_t n) noexcept;
  RevocationId open_revocation(PartitionId from, PartitionId taker, Nanoseconds deadline_ns,
                               std::int32_t wanted) noexcept;
  Status revoke_victims(RevocationId id) noexcept;
  Status bring_home(SlabId slab) noexcept;
  Status bring_home(SlabId slab, Revocation& revocation, Homecoming& home) noexcept;
  Lease& lease_for(SlabId slab, Homecoming& home) noexcept;
  void announce(Homecoming& home) noexcept;
  void end(Homecoming& home) noexcept;
  bool goes_to(PartitionId taker) const noexcept;
  Status release_own(SlabId slab) noexcept;
  void wake() noexcept;
  Status fence(RevocationId id) noexcept;
  Status quarantine(SlabId slab) noexcept;
  Status release_quarantined(SlabId slab) noexcept;
  void erase_if_over(LeaseId id, const Lease& lease) noexcept;
  Result<std::int32_t> sweep_locked(PartitionId id) noexcept;
  // True if the slab was one of the tenant's and is back.
  Result<bool> bring_back(PartitionId id, SlabId slab) noexcept;
  Result<std::int32_t> take_given(PartitionId id) noexcept;
  Status drop_locked(PartitionId id) noexcept;
  Result<RevocationProgress> poll_locked(RevocationId id) noexcept;
  void forget_revocations() noexcept;

  Status audit_partition(const Partition& one) const noexcept;
  Status audit_loans() const noexcept;

  const Pool pool_;
  const std::shared_ptr<const Clock> clock_;
  const std::shared_ptr<MoveObserver> observer_;

  mutable std::mutex books_;  // guards all members below
  SlabTable slabs_;
  std::uint64_t epoch_{1};
  std::vector<Partition> partitions_;
  std::vector<std::unique_ptr<SlabHolder>> holders_;          // by partition; null until added
  std::map<PartitionId, std::shared_ptr<TenantLine>> lines_;  // lines to tenants that are not lost
  std::map<LeaseId, Lease> leases_;                           // leases with at least one slab
  std::map<RevocationId, Revocation> revocations_;
  std::vector<RevocationId> revoked_by_;  // by slab: its revocation; 0 if the slab is not REVOKING
  std::vector<Scrub> scrubs_;             // by slab: progress of clean()
  std::vector<SlabId> victims_;           // slabs chosen by the current revocation
  std::vector<Busy> busy_;                // scratch of choose_victims()
  std::vector<Account> accounts_;         // by partition
  std::vector<PartitionRecord> shown_;    // the records as published in the ledger
  std::vector<RevocationId> under_way_;   // revocations that were pending at the last show()
  bool has_changed_{false};               // a change since the last show(), not counting slabs_
  bool has_news_{false};                  // blocks or pins changed; ownership did not
  Nanoseconds changed_ns_{0};             // last change of anything but blocks and pins
  Watch watch_;
  bool is_listened_to_{false};
  Nanoseconds turn_ns_{0};       // start of the last transaction, on the clock
  Nanoseconds turn_real_ns_{0};  // the same in real time
  LeaseId next_lease_{1};
  RevocationId next_revocation_{1};
  std::int32_t waiters_{0};

  // Advances when revoked slabs have returned or were quarantined; wait() sleeps on it.
  std::atomic<std::uint32_t> changes_{0};
  std::atomic<std::uint32_t> rung_{0};       // number of rings; listen() sleeps on it
  std::atomic<std::uint32_t> listeners_{0};  // number of threads in listen()
};

}  // namespace rose::memory
