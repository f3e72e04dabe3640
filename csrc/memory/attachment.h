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
  bool is_arbiter_gone{false};  // what we are inside of stays ours until a successor says otherwise
};

// Holds the pool's mapping, the ledger, the mailbox and the one allocator of the tenant. Using a
// slab takes no word with the arbiter: the allocator goes through the door of the mailbox.
//
// Thread rule: any thread. Three locks, taken in the order slabs, blocks, line; none of them is
// held over a wait.
//
// Invariants:
//   1. The allocator gives blocks only of slabs that it has entered.
//   2. A slab that the arbiter granted is found in the mailbox, whether or not an answer arrives.
class Attachment final : private SlabDoor {
 public:
  // Corrupt when ledger or mailbox are none, can be written to or resized by who should not, or do
  // not belong together; InvalidArgument when the pool is another. On error nothing is left.
  static Result<std::unique_ptr<Attachment>> create(Pool pool, AttachmentParts parts) noexcept;
  Attachment(const Attachment&) = delete;
  Attachment& operator=(const Attachment&) = delete;
  ~Attachment();

  const Pool& pool() const noexcept { return pool_; }
  PartitionId partition() const noexcept { return partition_; }
  std::shared_ptr<const LedgerView> ledger() const noexcept;
  // There is one, and it lives as long as the attachment.
  Result<BlockAllocator*> add_allocator(BlockGeometry geometry) noexcept;

  // Waits for the arbiter's bell or the end of its socket, for at most `timeout_ns`; then looks.
  Result<TenantNews> news(Nanoseconds timeout_ns) noexcept;
  // Looks without waiting.
  Result<TenantNews> look() noexcept;
  // The newest revocation from this partition, as the ledger tells; nothing before the first.
  Result<std::optional<RevocationNote>> revocation() const noexcept;

  // Says that the tenant lives, what it has done so far, and how full its slabs are.
  void beat(std::uint64_t progress) noexcept;
  // Hints: of busy slabs the one with the smallest rank is revoked first. A hint lasts as long as
  // the slab is ours.
  Status set_ranks(std::span<const SlabId> slabs, std::span<const std::uint32_t> ranks) noexcept;
  // Gives slabs without blocks or pins back by our own will. Returns how many.
  Result<std::int32_t> give_idle() noexcept;
  // Nothing more is allocated, and what is idle goes back; the rest as it is freed.
  Status close() noexcept;

  // Goes on under a successor of the arbiter: the pool and the mailbox stay, and so do blocks.
  // On error everything is as before. `parts.mailbox` is not looked at.
  Status follow(AttachmentParts parts) noexcept;

 private:
  // What the arbiter's side is reached by; a successor brings its own.
  struct Line {
    std::shared_ptr<const LedgerView> ledger;
    EventFd to_arbiter;
    EventFd to_tenant;
    FileDescriptor socket;
  };
  struct Known {
    bool is_ours{false};
    std::uint32_t generation{0};
  };

  Attachment(Pool pool, Mailbox mailbox, std::shared_ptr<const Line> line) noexcept;
  static Result<std::shared_ptr<const Line>> make_line(AttachmentParts parts) noexcept;
  std::shared_ptr<const Line> line() const noexcept;

  // SlabDoor, under the allocator's lock.
  bool has_news() noexcept override;
  bool is_open(SlabId slab, std::uint32_t generation) const noexcept override;
  bool enter(SlabId slab, std::uint32_t generation) noexcept override;
  bool leave(SlabId slab, std::uint32_t generation) noexcept override;

  Pool pool_;
  const Mailbox mailbox_;
  const PartitionId partition_;  // read once: the mailbox can be written by whoever has it

  std::mutex blocks_;  // the allocator's own; guards seen_news_
  std::uint64_t seen_news_{0};
  std::atomic<bool> is_closed_{false};

  mutable std::mutex lines_;  // guards line_
  std::shared_ptr<const Line> line_;

  std::mutex slabs_;  // guards all of the below
  std::unique_ptr<BlockAllocator> allocator_;
  std::vector<Known> known_;  // by slab: what the allocator was given
};

}  // namespace rose::memory
