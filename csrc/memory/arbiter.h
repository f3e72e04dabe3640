// Who owns which slab of a pool, and how loans come home in time.
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
#include "memory/slab_groups.h"
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
  kAtRisk,  // the reserve of another partition, or what the lender could need
};
// The state of the pool when somebody asks for a loan.
struct Supply {
  std::uint64_t epoch{0};
  PartitionId borrower{kNobody};
  std::int32_t slabs{0};        // wanted, > 0
  std::int32_t unowned{0};      // slabs
  std::int64_t free_blocks{0};  // of the lender
};
// Says what of a loan `lender` can do without. Asked under the arbiter's mutex, where nothing
// changes before the slabs are handed out; the rules of MoveObserver hold.
class Admission {
 public:
  explicit Admission(PartitionId lender_id) noexcept : lender{lender_id} {}
  virtual ~Admission() = default;
  // Returns how many slabs may be lent, at most `supply.slabs`; 0 refuses the loan.
  virtual Result<std::int32_t> admit(const Supply& supply) noexcept = 0;

  const PartitionId lender;
};
// The loan, or why there is none.
struct GrantAnswer {
  Grant grant;  // empty when refused
  std::optional<GrantRefusal> refusal;
};

// Any answer but kRenewed means that nothing has changed.
enum class RenewAnswer : std::uint8_t {
  kRenewed,
  kStaleEpoch,  // the lease has another lease_epoch
  kRevoking,    // every slab of it is on the way back
  kOver,        // returned, fenced, past its TTL, or never granted
};

// Counts of slabs. `wanted` may exceed the sum of the others: a revocation is partial.
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

// One change of ownership: `slabs` slabs went from one partition to another (kNobody: unowned,
// kInQuarantine: lost for now), and `epoch` is the arbiter's epoch from then on.
struct Move {
  MoveKind kind{};
  PartitionId from_partition{kNobody};
  PartitionId to_partition{kNobody};
  std::int32_t slabs{0};
  LeaseId lease_id{0};
  std::uint64_t epoch{0};
};

// Sees every change of ownership in true order, under the arbiter's mutex: it must be quick, must
// not call back, and must not wait for a lock under which anybody calls the arbiter.
class MoveObserver {
 public:
  virtual ~MoveObserver() = default;
  virtual void on_move(const Move& move) noexcept = 0;
};

struct PartitionSnapshot {
  Partition partition;
  std::int64_t free_blocks{0};
  std::int64_t used_blocks{0};
  // Lent slabs that a revocation would get inside its own call.
  std::int32_t revocable_now{0};
  std::int32_t in_revocation{0};
};

struct Snapshot {
  std::uint64_t epoch{0};
  std::int32_t unowned{0};
  std::int32_t quarantined{0};
  std::vector<PartitionSnapshot> partitions;
};

// Lends slabs and takes them back. The life of a slab is the table in slab_state.h; in one line:
//
//   own memory   UNOWNED -> OWNED -> RETURNED -> UNOWNED
//   a loan       UNOWNED -> GRANTED -> REVOKING -> QUIESCED -> RETURNED -> OWNED by the taker
//   a late one   ... REVOKING -> FENCED -> QUARANTINED -> RETURNED -> UNOWNED
//
// Thread rule: any thread. One mutex guards the books, the allocators of all partitions included;
// it is held for microseconds, and over no system call but the wake of a waiter, the bell of a
// tenant (and, in check_invariants, a mapping of the ledger).
//
// Invariants:
//   1. No slab has two owners; free + owned + quarantined = all.
//   2. unowned >= the sum of all partitions' shortfalls: a reserve can always be filled.
//   3. A partition never holds more than its limit, late slabs included.
//   4. A slab with a pin or a block in use never changes owner. It can be lost to quarantine, from
//      where only the completion of its old owner frees it.
//   5. A REVOKING slab has a block in use or a pin: otherwise it would be back. (Of a tenant in
//      another process: or the tenant has left it since the last sweep().)
//      Or rose itself is writing zeros over it: see clean().
//   6. A lease that was returned or fenced never comes back; a stale lease_epoch changes nothing.
//   7. `epoch` moves on with every change of ownership.
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

  // InvalidArgument when the reserves of all exceed the pool; Unavailable when the slabs of this
  // reserve are lent out at the moment, or when kPartitionsMax partitions have slabs or may.
  Result<PartitionId> add_partition(std::string name, std::int32_t reserve_slabs,
                                    std::int32_t limit_slabs) noexcept;
  // The tenant is gone: what it does not use goes back at once, the rest into quarantine. A second
  // call changes nothing.
  Status drop_partition(PartitionId partition) noexcept;
  // A dropped partition is there again, for the next tenant, with the reserve it had. Unavailable
  // while slabs of the last one are not back, or when its reserve cannot be filled.
  Status reopen_partition(PartitionId partition, std::int32_t limit_slabs) noexcept;
  // The allocator of a partition; there is one, and it lives as long as the arbiter.
  Result<BlockAllocator*> add_allocator(PartitionId partition, BlockGeometry geometry) noexcept;
  // One more for the same slabs: see SlabGroups. InvalidArgument before add_allocator().
  Result<BlockAllocator*> add_group(PartitionId partition, BlockGeometry geometry) noexcept;
  // Of a partition with an allocator here; see SlabGroups.
  Result<std::int64_t> missing_slabs(PartitionId partition,
                                     std::span<const std::int64_t> wanted) const noexcept;

  // ---- tenants of other processes

  // The line to a tenant that will use the slabs of a partition from another process.
  Result<std::shared_ptr<TenantLine>> add_tenant(PartitionId partition,
                                                 Telling telling = Telling::kAtGrant) noexcept;
  // Looks at the tenant's words: what it left or gave back comes home. Returns how many slabs.
  // Nothing has to have told us; calling it twice changes nothing.
  Result<std::int32_t> sweep(PartitionId partition) noexcept;
  // The tenant's process is proven gone: whatever it held is usable again, its leases are over and
  // the partition is dropped. Returns how many slabs came home; a second call changes nothing.
  Result<std::int32_t> lose_tenant(PartitionId partition) noexcept;
  // The line to the tenant of a partition, for its watch; there is one.
  Result<std::shared_ptr<TenantLine>> line_of(PartitionId partition) const noexcept;

  // ---- own memory

  // Up to n slabs, as many as ceiling, floor of the others and unowned slabs allow.
  Result<std::vector<SlabId>> take(PartitionId partition, std::int32_t n) noexcept;
  // Up to n own slabs without blocks or pins, and only what is above the reserve. Returns how many.
  Result<std::int32_t> give_back(PartitionId partition, std::int32_t n) noexcept;

  // ---- loans

  std::uint64_t epoch() const noexcept;
  // All n or a refusal; but no more than leave the partition with `held_max` slabs, late ones
  // included. With an `admission` as many of them as it admits, and none when its lender would be
  // short after the grant (see watch()).
  Result<GrantAnswer> grant(
      PartitionId partition, std::int32_t n, Nanoseconds ttl_ns, Admission* admission = nullptr,
      std::int32_t held_max = std::numeric_limits<std::int32_t>::max()) noexcept;
  // Makes a slab on loan zeros, before its tenant uses any block of it; whoever is told kWhenClean
  // is told of it then. False when it was taken back meanwhile, which waits for one scrub. No lock
  // is held while zeros are written. A scrub that is late (DeadlineExceeded) may still be written
  // to by the device: that slab is nobody's until prove_completion(). InvalidArgument for a slab
  // that its tenant was told of: it may be using it.
  Result<bool> clean(PartitionId partition, SlabId slab) noexcept;
  // The lease lasts `ttl_ns` from now.
  Result<RenewAnswer> renew(LeaseId lease_id, std::uint64_t lease_epoch,
                            Nanoseconds ttl_ns) noexcept;
  // Call it now and then: fences what is past its deadline, and starts to revoke leases past their
  // TTL, with a deadline `grace_ns` from now. Returns the revocations it started. The ledger shows
  // blocks and pins as they are then.
  Result<std::vector<RevocationId>> expire(Nanoseconds grace_ns) noexcept;

  // ---- taking back

  // Its lent slabs without blocks or pins go back to nobody inside this call. Returns how many.
  Result<std::int32_t> give_idle(PartitionId partition) noexcept;
  // The lent slabs of a partition, for an engine that wants to choose victims.
  Result<std::vector<Candidate>> candidates(PartitionId partition) const noexcept;
  // Its slabs on the way back, and those it was late with, that still hold blocks or pins.
  Result<std::vector<SlabId>> leaving(PartitionId partition) const noexcept;
  // Revokes up to n lent slabs: first those without blocks or pins, which change hands inside this
  // call; then `preferred`, in its order (what is no candidate is passed over); then those with
  // the fewest blocks in use. A slab goes to `taker` as its own memory, or to nobody when taker is
  // -1, at its ceiling, gone, or when the slab is needed for the floor of another.
  Result<RevocationId> revoke(PartitionId partition, std::int32_t n, Nanoseconds deadline_ns,
                              PartitionId taker, std::span<const SlabId> preferred) noexcept;
  // How far it is. Past its deadline this fences what is still pending. The last
  // kRevocationsKept revocations that are over can be asked about.
  Result<RevocationProgress> poll(RevocationId revocation) noexcept;
  // As poll(), but returns when nothing is pending any more or after `timeout_ns` of real time.
  Result<RevocationProgress> wait(RevocationId revocation, Nanoseconds timeout_ns) noexcept;
  // The partition's work is known to be complete (its process is dead, its stream has drained):
  // its quarantined slabs are usable again. Returns how many.
  Result<std::int32_t> prove_completion(PartitionId partition) noexcept;

  // ---- what a tenant could need (watch.cpp)

  // From now on `partition`, of whose blocks a slab holds `blocks_per_slab`, could need
  // `demand_blocks` before a loan is back; 0 ends it. It is short while anything is lent and its
  // supply, its free blocks and those of unowned slabs, is less than that. Returns whether it is,
  // or will be once it has taken `taking` blocks. One partition is watched at a time.
  //
  // The bell rings, once for each call of watch(), inside the first allocation of its allocator
  // that leaves it short or finds it so.
  Result<bool> watch(PartitionId partition, std::int64_t demand_blocks,
                     std::int32_t blocks_per_slab, std::int64_t taking) noexcept;
  // The same question with the demand that was said last; the bell is left alone.
  Result<bool> is_short(PartitionId partition, std::int64_t taking) const noexcept;
  // Sleeps until the bell has rung since it had rung `heard` times, or for `timeout_ns` of real
  // time. Returns how often it has rung.
  //
  // Whoever listens again and again shows that this process runs: time in which it did not, because
  // it was stopped or the machine slept, is counted against no tenant (see note_standstill()). Who
  // listens for the last time does so with a `timeout_ns` of 0.
  std::uint32_t listen(std::uint32_t heard, Nanoseconds timeout_ns) noexcept;
  void ring() noexcept;

  // ---- numbers

  Snapshot snapshot() const noexcept;
  // Recounts everything; for tests and for an idle moment.
  Status check_invariants() const noexcept;

  static constexpr std::size_t kRevocationsKept = 1024;

 private:
  struct Lease {
    PartitionId partition;
    std::uint64_t lease_epoch;
    Nanoseconds expires_ns;
    std::int32_t granted;   // slabs that are not on the way back
    std::int32_t revoking;  // slabs that are
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
    bool is_armed{false};  // the bell has not rung for it
  };

  enum class Scrub : std::uint8_t {
    kNone,
    kRuns,
    kLate,  // nobody waits for it any more, and the device may still write
  };

  // A lent slab with blocks or pins; the smallest is revoked first.
  struct Busy {
    std::int32_t rank;   // in the caller's list of preferred slabs
    std::uint32_t hint;  // the tenant's own
    std::int32_t used;
    SlabId slab;
    auto operator<=>(const Busy&) const = default;
  };

  // Slabs of one lease that go the same way in one call: one move, one look into the books.
  struct Homecoming {
    LeaseId lease_id{0};
    Lease* lease{nullptr};
    PartitionId from{kNobody};
    PartitionId to{kNobody};
    std::int32_t slabs{0};  // not announced yet
  };
  // What is counted for a partition besides its slabs.
  struct Account {
    std::int32_t leases{0};
    RevocationId newest_revocation{0};
  };

  // Holds the mutex; on the way out the ledger shows what has changed, and tenants hear of it.
  class Turn {
   public:
    explicit Turn(Arbiter& arbiter) noexcept : arbiter_{arbiter}, lock_{arbiter.books_} {
      arbiter_.note_standstill();
    }
    ~Turn() { arbiter_.show(); }

   private:
    Arbiter& arbiter_;
    std::lock_guard<std::mutex> lock_;
  };

  Arbiter(Pool pool, SlabTable slabs, std::shared_ptr<const Clock> clock,
          std::shared_ptr<MoveObserver> observer) noexcept;

  Status no_allocator(PartitionId id) const noexcept;
  static Status check_duration(const char* name, Nanoseconds value, Nanoseconds least) noexcept;

  // All of the below need the mutex.
  Status on_slab_idle(SlabId slab) noexcept override;
  void on_blocks_taken(const SlabHolder& taker) noexcept override;
  bool is_of_watched(const SlabHolder& taker) const noexcept {
    const SlabHolder* const watched = holder_of(watch_.partition);
    return watched == &taker || (watched != nullptr && watched->includes(taker));
  }
  // The free blocks that who is watched must have with `unowned` slabs unowned.
  std::int64_t low_water(std::int32_t unowned) const noexcept {
    return watch_.demand_blocks - std::int64_t{unowned} * watch_.blocks_per_slab;
  }
  // While somebody listens, a turn comes every few milliseconds. When none came for much longer,
  // this process stood still, and deadlines and TTLs move on by that time.
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

  Status choose_victims(PartitionId from, std::int32_t n,
                        std::span<const SlabId> preferred) noexcept;
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
  Result<std::int32_t> take_given(PartitionId id) noexcept;
  Status drop_locked(PartitionId id) noexcept;
  Result<RevocationProgress> poll_locked(RevocationId id) noexcept;
  void forget_revocations() noexcept;

  Status audit_partition(const Partition& one) const noexcept;
  Status audit_loans() const noexcept;

  const Pool pool_;
  const std::shared_ptr<const Clock> clock_;
  const std::shared_ptr<MoveObserver> observer_;

  mutable std::mutex books_;  // guards everything below
  SlabTable slabs_;
  std::uint64_t epoch_{1};
  std::vector<Partition> partitions_;
  std::vector<std::unique_ptr<SlabHolder>> holders_;          // by partition; null until added
  std::map<PartitionId, std::shared_ptr<TenantLine>> lines_;  // of tenants that are not lost
  std::map<LeaseId, Lease> leases_;                           // those with a slab left
  std::map<RevocationId, Revocation> revocations_;
  std::vector<RevocationId> revoked_by_;  // by slab; 0 when it is not REVOKING
  std::vector<Scrub> scrubs_;             // by slab: what clean() is doing to it
  std::vector<SlabId> victims_;           // of the revocation at hand
  std::vector<Busy> busy_;                // while they are chosen
  std::vector<std::int32_t> ranks_;       // by slab, while they are chosen
  std::vector<Account> accounts_;         // by partition
  std::vector<PartitionRecord> shown_;    // what the ledger shows, each in its place
  std::vector<RevocationId> under_way_;   // those that something was pending of at the last show()
  bool has_changed_{false};               // something that is no slab
  bool has_news_{false};                  // blocks or pins came or went; nothing changed hands
  Nanoseconds changed_ns_{0};             // when something did
  Watch watch_;
  bool is_listened_to_{false};
  Nanoseconds turn_ns_{0};       // when the last turn began, on the clock
  Nanoseconds turn_real_ns_{0};  // the same in real time
  LeaseId next_lease_{1};
  RevocationId next_revocation_{1};
  std::int32_t waiters_{0};

  // Moves on when a slab of a revocation came home or was lost; waiters sleep on it.
  std::atomic<std::uint32_t> changes_{0};
  // How often the bell has rung, and how many sleep on that word.
  std::atomic<std::uint32_t> rung_{0};
  std::atomic<std::uint32_t> listeners_{0};
};

}  // namespace rose::memory
