// A tenant's use of slabs whose arbiter is in another process.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/owned_thread.h"
#include "base/process.h"
#include "memory/arbiter.h"
#include "memory/block_allocator.h"
#include "memory/ledger.h"
#include "memory/mailbox.h"
#include "memory/pool.h"
#include "memory/slab_door.h"

namespace rose::memory {

// The descriptors that an arbiter passes to a tenant besides those of the pool.
struct AttachmentParts {
  FileDescriptor ledger;
  FileDescriptor mailbox;
  FileDescriptor to_arbiter;
  FileDescriptor to_tenant;
  FileDescriptor socket;  // its hang-up means that the arbiter is gone; may be empty
};

// Changes of a tenant's slabs since the last call of news() or look().
struct TenantNews {
  // Slabs that are being revoked or were given up, and still have blocks or pins of this tenant.
  std::vector<SlabId> closed;
  std::int32_t taken{0};        // idle slabs that the arbiter has taken back
  std::int32_t admitted{0};     // new slabs
  bool was_rung{false};         // the arbiter rang, perhaps only because slabs became free
  bool is_arbiter_gone{false};  // the arbiter's process is gone for good, so all loans are over
};

// Holds the pool's mapping, the ledger, the mailbox and the tenant's allocator. Using a slab needs
// no message to the arbiter: the allocator changes the slab's word in the mailbox, by SlabDoor.
//
// attend() starts a thread that runs no Python, so no interpreter can delay it. While the process
// runs, it reports heartbeats and gives up closed slabs that no pin holds.
//
// Thread rule: any thread. A thread that needs two locks takes `slabs_` first, then `blocks_`.
// Neither is held during a wait.
//
// Invariants:
//   1. The allocator gives blocks only from slabs that it has entered.
//   2. A granted slab is in the mailbox even if the arbiter's answer to the request is lost.
//   3. The allocator gives blocks only from slabs that are mapped here.
//   4. Between hold() and release() no slab is given up.
class Attachment final : private SlabDoor {
 public:
  // Corrupt if the ledger or the mailbox is invalid, if a process could write or resize either
  // without permission, or if the two do not belong together. InvalidArgument if they belong to
  // another pool. On error nothing is left.
  static Result<std::unique_ptr<Attachment>> create(Pool pool, AttachmentParts parts) noexcept;
  // As create(), for a tenant that maps only lent slabs: see reach().
  static Result<std::unique_ptr<Attachment>> create_mapped(PoolShape shape,
                                                           AttachmentParts parts) noexcept;
  // For a tenant in the arbiter's own process, which uses the arbiter's mapping of the pool. A
  // closed slab is the arbiter's again when the call that leaves it returns.
  static Result<std::unique_ptr<Attachment>> create_here(std::shared_ptr<Arbiter> arbiter,
                                                         PartitionId partition) noexcept;
  Attachment(const Attachment&) = delete;
  Attachment& operator=(const Attachment&) = delete;
  ~Attachment();

  const PoolShape& shape() const noexcept { return shape_; }
  // Null if slabs are mapped one by one.
  const Pool* pool() const noexcept { return pool_.has_value() ? &*pool_ : nullptr; }
  PartitionId partition() const noexcept { return partition_; }
  std::shared_ptr<const LedgerView> ledger() const noexcept { return line_.ledger; }
  // Adds the only allocator, which lives as long as the attachment.
  Result<BlockAllocator*> add_allocator(BlockGeometry geometry) noexcept;

  // Starts the thread, which reports a heartbeat every `every_ns`. A closed slab without a pin has
  // a grace of a few milliseconds, in which the engine may free or move its blocks; then the thread
  // gives it up. No effect after the first call. The arbiter's bell wakes the thread. In the
  // arbiter's own process wake() does, because the thread that revokes notifies the engine first,
  // and so does the call that removes a closed slab's last pin.
  Status attend(Nanoseconds every_ns) noexcept;
  // Wakes the thread if a closed slab without a pin is left.
  void wake() noexcept;
  // For an engine that plans a step: from leaving() until the step's blocks are pinned.
  void hold() noexcept;
  void release() noexcept;

  // Waits for the arbiter's bell or the end of its socket, at most `timeout_ns`, then looks.
  Result<TenantNews> news(Nanoseconds timeout_ns) noexcept;
  // Looks without waiting.
  Result<TenantNews> look() noexcept;
  // Returns the tenant's slabs, except those that the tenant must empty.
  Result<std::vector<SlabId>> lent() noexcept;
  // Returns the slabs that the tenant must empty: closed ones, those that were given up, and those
  // that the ledger shows in quarantine. A slab may occur twice.
  Result<std::vector<SlabId>> leaving() noexcept;
  // True if the ledger shows slabs that this tenant uses past their deadline.
  bool is_late() const noexcept;
  // Returns the newest revocation from this partition in the ledger; nothing before the first.
  Result<std::optional<RevocationNote>> revocation() const noexcept;

  // ---- slabs mapped one by one

  // Reports slabs that are now mapped here: their blocks may be used once the slabs are the
  // tenant's.
  Status reach(std::span<const SlabId> slabs) noexcept;
  // Returns the slabs that the tenant has lost and must unmap. None is used again before reach().
  Result<std::vector<SlabId>> retire() noexcept;

  // Reports a heartbeat, the progress so far, and the use of each slab.
  void beat(std::uint64_t progress) noexcept;
  // Sets hints for revocations: among busy slabs, the one with the smallest rank is revoked first.
  // A hint lasts until the tenant loses the slab.
  Status set_ranks(std::span<const SlabId> slabs, std::span<const std::uint32_t> ranks) noexcept;
  // Gives back slabs without blocks or pins. Returns how many.
  Result<std::int32_t> give_idle() noexcept;
  // Ends allocation and the thread, and gives back idle slabs. The others return as soon as they
  // become idle.
  Status close() noexcept;

 private:
  // The connection to the arbiter.
  struct Line {
    std::shared_ptr<const LedgerView> ledger;
    EventFd to_arbiter;
    EventFd to_tenant;
    FileDescriptor socket;
    EventFd stop;  // ends the thread
    // The thread's ring for news(), after it has silenced `to_tenant`. In the arbiter's own process
    // it wakes the thread.
    EventFd news;
  };
  struct Known {
    bool is_ours{false};
    bool is_mapped{false};
    bool is_given_up{false};  // and not empty yet at the last look
    std::uint32_t generation{0};
  };

  Attachment(std::optional<Pool> pool, PoolShape shape, Mailbox mailbox, Line line,
             std::shared_ptr<Arbiter> arbiter) noexcept;
  static Result<std::unique_ptr<Attachment>> make(std::optional<Pool> pool, PoolShape shape,
                                                  AttachmentParts parts,
                                                  std::shared_ptr<Arbiter> arbiter) noexcept;
  Status check_slabs(std::span<const SlabId> slabs, const char* purpose) const noexcept;
  Result<TenantNews> look_locked() noexcept;
  void run(Nanoseconds every_ns) noexcept;
  bool give_up_closed(std::span<Nanoseconds> since_ns) noexcept;
  bool has_given_up(SlabId slab) const noexcept;
  static Result<Line> make_line(AttachmentParts parts) noexcept;

  // SlabDoor, under the allocator's lock.
  bool has_news() noexcept override;
  bool is_open(SlabId slab, std::uint32_t generation) const noexcept override;
  bool enter(SlabId slab, std::uint32_t generation) noexcept override;
  bool leave(SlabId slab, std::uint32_t generation) noexcept override;
  void on_unpinned(SlabId slab) noexcept override;

  const std::optional<Pool> pool_;
  const PoolShape shape_;
  const Mailbox mailbox_;
  const Line line_;
  const std::shared_ptr<Arbiter> arbiter_;  // null if it is in another process
  const PartitionId partition_;             // read once, because the mailbox is writable by others

  mutable std::mutex blocks_;  // the allocator's lock; also guards seen_news_ and holds_
  std::uint64_t seen_news_{0};
  std::int32_t holds_{0};
  const Owner owner_;
  std::atomic<bool> is_closed_{false};

  std::mutex slabs_;  // guards allocator_ and known_
  std::unique_ptr<BlockAllocator> allocator_;
  std::vector<Known> known_;  // by slab: state known to the allocator

  std::atomic<bool> is_attended_{false};
  OwnedThread thread_;  // last, because it uses all of the above
};

}  // namespace rose::memory
