// Who owns which slab of a pool, and how loans come home in time.
#pragma once

#include <atomic>
#include <compare>
#include <cstdint>
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
#include "memory/slab_table.h"

namespace rose::memory {

using LeaseId = std::uint64_t;
using RevocationId = std::uint64_t;

struct Grant {
  LeaseId lease_id{0};
  std::uint64_t lease_epoch{0};
  std::vector<SlabId> slabs;
};
enum class GrantRefusal : std::uint8_t { kStaleEpoch, kPoolEmpty, kOverLimit, kFloor };
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
// it is held for microseconds, and over no system call but the wake of a waiter (and, in
// check_invariants, a mapping of the ledger).
//
// Invariants:
//   1. No slab has two owners; free + owned + quarantined = all.
//   2. unowned >= the sum of all partitions' shortfalls: a reserve can always be filled.
//   3. A partition never holds more than its limit, late slabs included.
//   4. A slab with a pin or a block in use never changes owner. It can be lost to quarantine, from
//      where only the completion of its old owner frees it.
//   5. A REVOKING slab has a block in use or a pin: otherwise it would be back.
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
  // reserve are lent out at the moment.
  Result<PartitionId> add_partition(std::string name, std::int32_t reserve_slabs,
                                    std::int32_t limit_slabs) noexcept;
  // The tenant is gone: what it does not use goes back at once, the rest into quarantine. A second
  // call changes nothing.
  Status drop_partition(PartitionId partition) noexcept;
  // The allocator of a partition; there is one, and it lives as long as the arbiter.
  Result<BlockAllocator*> add_allocator(PartitionId partition, BlockGeometry geometry) noexcept;

  // ---- own memory

  // Up to n slabs, as many as ceiling, floor of the others and unowned slabs allow.
  Result<std::vector<SlabId>> take(PartitionId partition, std::int32_t n) noexcept;
  // Up to n own slabs without blocks or pins, and only what is above the reserve. Returns how many.
  Result<std::int32_t> give_back(PartitionId partition, std::int32_t n) noexcept;

  // ---- loans

  std::uint64_t epoch() const noexcept;
  // All n or a refusal. Refused as stale when a slab has changed hands since `expected_epoch`.
  // Blocks that tenants take in slabs they own do not move the epoch: whoever reckons with free
  // blocks looks again after the grant.
  Result<GrantAnswer> grant(PartitionId partition, std::int32_t n, Nanoseconds ttl_ns,
                            std::uint64_t expected_epoch) noexcept;
  // The lease lasts `ttl_ns` from now.
  Result<RenewAnswer> renew(LeaseId lease_id, std::uint64_t lease_epoch,
                            Nanoseconds ttl_ns) noexcept;
  // Call it now and then: fences what is past its deadline, and starts to revoke leases past their
  // TTL, with a deadline `grace_ns` from now. Returns the revocations it started.
  Result<std::vector<RevocationId>> expire(Nanoseconds grace_ns) noexcept;

  // ---- taking back

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

  // A lent slab with blocks or pins; the smallest is revoked first.
  struct Busy {
    std::int32_t rank;  // in the caller's list of preferred slabs
    std::int32_t used;
    SlabId slab;
    auto operator<=>(const Busy&) const = default;
  };

  // Holds the mutex; on the way out the ledger shows what has changed.
  class Turn {
   public:
    explicit Turn(Arbiter& arbiter) noexcept : arbiter_{arbiter}, lock_{arbiter.books_} {}
    ~Turn() { arbiter_.slabs_.publish(arbiter_.epoch_); }

   private:
    Arbiter& arbiter_;
    std::lock_guard<std::mutex> lock_;
  };

  Arbiter(Pool pool, SlabTable slabs, std::shared_ptr<const Clock> clock,
          std::shared_ptr<MoveObserver> observer) noexcept;

  // All of the below need the mutex.
  Status on_slab_idle(SlabId slab) noexcept override;
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
  Candidate candidate(SlabId slab) const noexcept;
  Status hand_out(SlabId slab, SlabState to, Hold hold) noexcept;
  void announce(Move move) noexcept;

  Status choose_victims(PartitionId from, std::int32_t n,
                        std::span<const SlabId> preferred) noexcept;
  RevocationId open_revocation(PartitionId from, PartitionId taker, Nanoseconds deadline_ns,
                               std::int32_t wanted) noexcept;
  Status revoke_victims(RevocationId id) noexcept;
  Status bring_home(SlabId slab) noexcept;
  Status fence(RevocationId id) noexcept;
  Status quarantine(SlabId slab) noexcept;
  Status release_quarantined(SlabId slab) noexcept;
  void leave_lease(LeaseId id, bool is_fenced) noexcept;
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
  std::vector<std::unique_ptr<SlabHolder>> holders_;  // by partition; null until added
  std::map<LeaseId, Lease> leases_;                   // those with a slab left
  std::map<RevocationId, Revocation> revocations_;
  std::vector<RevocationId> revoked_by_;  // by slab; 0 when it is not REVOKING
  std::vector<SlabId> victims_;           // of the revocation at hand
  std::vector<Busy> busy_;                // while they are chosen
  std::vector<std::int32_t> ranks_;       // by slab, while they are chosen
  LeaseId next_lease_{1};
  RevocationId next_revocation_{1};
  std::int32_t waiters_{0};

  // Moves on when a slab of a revocation came home or was lost; waiters sleep on it.
  std::atomic<std::uint32_t> changes_{0};
};

}  // namespace rose::memory
