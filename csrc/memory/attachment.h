// A tenant's end: slabs of an arbiter in another process.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/process.h"
#include "memory/block_allocator.h"
#include "memory/ledger.h"
#include "memory/mailbox.h"
#include "memory/pool.h"
#include "memory/slab_door.h"
#include "memory/slab_groups.h"

namespace rose::memory {

// The descriptors that an arbiter hands to a tenant beside those of the pool.
struct AttachmentParts {
  FileDescriptor ledger;
  FileDescriptor mailbox;
  FileDescriptor to_arbiter;
  FileDescriptor to_tenant;
  FileDescriptor socket;  // its hang-up says that the arbiter is gone; may be none
};

// What a tenant learns when it looks.
struct TenantNews {
  std::vector<SlabId> closed;   // on the way back, and still with blocks or pins of ours
  std::int32_t taken{0};        // idle slabs that have left since the last look
  std::int32_t admitted{0};     // slabs that have come
  bool was_rung{false};         // the arbiter had something to say, if only that there is room
  bool is_arbiter_gone{false};  // for good: the loans are over, and the memory is let go of
};

// Holds the pool's mapping, the ledger, the mailbox and the allocators of the tenant. Using a
// slab takes no word with the arbiter: the allocator goes through the door of the mailbox.
//
// Thread rule: any thread. Two locks, taken in the order slabs, blocks; neither is held over a
// wait.
//
// Invariants:
//   1. The allocator gives blocks only of slabs that it has entered.
//   2. A slab that the arbiter granted is found in the mailbox, whether or not an answer arrives.
//   3. The allocator gives blocks only of slabs that are mapped here.
class Attachment final : private SlabDoor {
 public:
  // Corrupt when ledger or mailbox are none, can be written to or resized by who should not, or do
  // not belong together; InvalidArgument when the pool is another. On error nothing is left.
  static Result<std::unique_ptr<Attachment>> create(Pool pool, AttachmentParts parts) noexcept;
  // The same for a tenant that maps what it is lent and no more: see reach().
  static Result<std::unique_ptr<Attachment>> create_mapped(PoolShape shape,
                                                           AttachmentParts parts) noexcept;
  Attachment(const Attachment&) = delete;
  Attachment& operator=(const Attachment&) = delete;
  ~Attachment();

  const PoolShape& shape() const noexcept { return shape_; }
  // Null where slabs are mapped one by one.
  const Pool* pool() const noexcept { return pool_.has_value() ? &*pool_ : nullptr; }
  PartitionId partition() const noexcept { return partition_; }
  std::shared_ptr<const LedgerView> ledger() const noexcept { return line_.ledger; }
  // There is one, and it lives as long as the attachment.
  Result<BlockAllocator*> add_allocator(BlockGeometry geometry) noexcept;
  // One more for the same slabs: see SlabGroups. InvalidArgument before add_allocator().
  Result<BlockAllocator*> add_group(BlockGeometry geometry) noexcept;
  Result<std::int64_t> missing_slabs(std::span<const std::int64_t> wanted) const noexcept {
    return groups_.missing_slabs(wanted);
  }

  // Waits for the arbiter's bell or the end of its socket, for at most `timeout_ns`; then looks.
  Result<TenantNews> news(Nanoseconds timeout_ns) noexcept;
  // Looks without waiting.
  Result<TenantNews> look() noexcept;
  // The slabs that are ours and not to be emptied.
  Result<std::vector<SlabId>> lent() noexcept;
  // The slabs to be emptied: those that were closed, and those that we are late with, as far as the
  // ledger tells. A slab may be there twice.
  Result<std::vector<SlabId>> leaving() noexcept;
  // Whether slabs whose deadline has passed are still in use, as far as the ledger tells.
  bool is_late() const noexcept;
  // The newest revocation from this partition, as the ledger tells; nothing before the first.
  Result<std::optional<RevocationNote>> revocation() const noexcept;

  // ---- slabs that are mapped one by one

  // These are mapped here now: from here on their blocks may be used, when they are ours.
  Status reach(std::span<const SlabId> slabs) noexcept;
  // The slabs that are no longer ours, to be unmapped; none of them is used before reach().
  Result<std::vector<SlabId>> retire() noexcept;

  // Says that the tenant lives, what it has done so far, and how full its slabs are.
  void beat(std::uint64_t progress) noexcept;
  // Hints: of busy slabs the one with the smallest rank is revoked first. A hint lasts as long as
  // the slab is ours.
  Status set_ranks(std::span<const SlabId> slabs, std::span<const std::uint32_t> ranks) noexcept;
  // Gives slabs without blocks or pins back by our own will. Returns how many.
  Result<std::int32_t> give_idle() noexcept;
  // Nothing more is allocated, and what is idle goes back; the rest as it is freed.
  Status close() noexcept;

 private:
  // What the arbiter's side is reached by.
  struct Line {
    std::shared_ptr<const LedgerView> ledger;
    EventFd to_arbiter;
    EventFd to_tenant;
    FileDescriptor socket;
  };
  struct Known {
    bool is_ours{false};
    bool is_mapped{false};
    std::uint32_t generation{0};
  };

  Attachment(std::optional<Pool> pool, PoolShape shape, Mailbox mailbox, Line line) noexcept;
  static Result<std::unique_ptr<Attachment>> make(std::optional<Pool> pool, PoolShape shape,
                                                  AttachmentParts parts) noexcept;
  Status check_slabs(std::span<const SlabId> slabs, const char* purpose) const noexcept;
  Result<TenantNews> look_locked() noexcept;
  static Result<Line> make_line(AttachmentParts parts) noexcept;
  bool has_allocator() const noexcept { return !groups_.groups().empty(); }
  Result<BlockAllocator*> make_group(BlockGeometry geometry, bool is_first) noexcept;

  // SlabDoor, under the allocator's lock.
  bool has_news() noexcept override;
  bool is_open(SlabId slab, std::uint32_t generation) const noexcept override;
  bool enter(SlabId slab, std::uint32_t generation) noexcept override;
  bool leave(SlabId slab, std::uint32_t generation) noexcept override;

  const std::optional<Pool> pool_;
  const PoolShape shape_;
  const Mailbox mailbox_;
  const Line line_;
  const PartitionId partition_;  // read once: the mailbox can be written by whoever has it

  mutable std::mutex blocks_;  // of all groups; guards seen_news_
  std::uint64_t seen_news_{0};
  std::atomic<bool> is_closed_{false};

  std::mutex slabs_;  // guards all of the below
  SlabGroups groups_{blocks_};
  std::vector<Known> known_;  // by slab: what the allocator was given
};

}  // namespace rose::memory
