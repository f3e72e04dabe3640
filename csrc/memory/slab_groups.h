// One partition's slabs, shared by the attention groups of its model.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "memory/block_allocator.h"

namespace rose::memory {

// Layers that keep different tokens have blocks of different sizes: each group of them has its own
// BlockAllocator over the same slabs. A slab belongs to one group at a time, at first to the first
// one. A group that runs out gets slabs of others without blocks and pins, so memory freed behind a
// window becomes room for the layers that keep everything.
//
// The arbiter sees one holder of slabs: loans, pins, revocations and losses work the same for all
// groups. In a tenant's process the groups use one door.
//
// Thread rule: any thread; methods take `books`, except those of SlabHolder and SlabSource, which
// are called under it.
//
// Invariants:
//   1. No slab belongs to two groups.
//   2. A slab with a block in use or set aside, or a pin, never changes group; cached blocks are
//      lost only when the new group needs their room.
class SlabGroups final : public SlabHolder, private SlabSource {
 public:
  explicit SlabGroups(std::mutex& books) noexcept : books_{books} {}
  SlabGroups(const SlabGroups&) = delete;
  SlabGroups& operator=(const SlabGroups&) = delete;

  // The first group has all slabs, the others start empty. Under `books`.
  BlockAllocator* add(std::unique_ptr<BlockAllocator> group) noexcept;
  std::span<const std::unique_ptr<BlockAllocator>> groups() const noexcept { return groups_; }

  // Number of further slabs needed for wanted[g] blocks of each group g at the same time.
  // InvalidArgument for another number of groups, or a negative number of blocks.
  Result<std::int64_t> missing_slabs(std::span<const std::int64_t> wanted) const noexcept;

  // ---- with a door

  // As BlockAllocator::admit_slab(), for the group that has the slab, or the first.
  Status admit_slab(SlabId slab, std::uint32_t generation) noexcept;
  // As BlockAllocator::reconcile(), for all groups.
  Status reconcile() noexcept;
  // The same under `books`.
  Status reconcile_locked() noexcept;

  // Blocks of the group that has the slab.
  std::int32_t used(SlabId slab) const noexcept;
  // As pin_totals(), without `books`.
  PinTotals pinned() const noexcept;

  // ---- SlabHolder

  void add_slab(SlabId slab, std::uint32_t generation) noexcept override;
  Status close_slab(SlabId slab) noexcept override;
  void quarantine_slab(SlabId slab) noexcept override;
  void remove_slab(SlabId slab) noexcept override;
  SlabLoad load(SlabId slab) const noexcept override;
  // Free blocks are those that the first group could get, used ones those of all.
  BlockTotals totals() const noexcept override;
  PinTotals pin_totals() const noexcept override;
  bool includes(const SlabHolder& other) const noexcept override;
  Status audit_slab(SlabId slab, SlabUse use, std::uint32_t generation) const noexcept override;
  Status audit() const noexcept override;

 private:
  std::int64_t spare_beside(const BlockAllocator& group) const noexcept override;
  bool move_spare_to(BlockAllocator& group) noexcept override;

  // Null for a slab that no group has.
  BlockAllocator* group_of(SlabId slab) const noexcept;

  std::mutex& books_;
  std::vector<std::unique_ptr<BlockAllocator>> groups_;
};

}  // namespace rose::memory
