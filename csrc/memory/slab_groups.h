// One partition's slabs, shared by the attention groups of its model.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "memory/block_allocator.h"

namespace rose::memory {

// Layers that keep different tokens (all of them, or those in a sliding window) have blocks of
// different sizes. Each group of such layers has its own BlockAllocator over the same slabs. A slab
// belongs to one group at a time; a new slab belongs to the first group. A group that runs out gets
// slabs of other groups that have no blocks in use and no pins. So the memory that a sliding window
// frees becomes room for the layers that keep all tokens.
//
// The arbiter sees one holder of slabs: loans, pins, revocations and losses work the same for all
// groups. In a tenant's process the groups share one SlabDoor.
//
// Thread rule: any thread. Methods lock the mutex `books`, except those of SlabHolder and
// SlabSource, whose callers hold it.
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

  // Adds a group. The first one has all slabs, and the others start empty. The caller holds
  // `books`.
  BlockAllocator* add(std::unique_ptr<BlockAllocator> group) noexcept;
  std::span<const std::unique_ptr<BlockAllocator>> groups() const noexcept { return groups_; }

  // Returns the number of further slabs that are needed for wanted[g] blocks of each group g at the
  // same time. InvalidArgument unless `wanted` has one number >= 0 per group.
  Result<std::int64_t> missing_slabs(std::span<const std::int64_t> wanted) const noexcept;

  // ---- with a door

  // As BlockAllocator::admit_slab(), for the group that has the slab, or else for the first group.
  Status admit_slab(SlabId slab, std::uint32_t generation) noexcept;
  // As BlockAllocator::reconcile(), for all groups.
  Status reconcile() noexcept;
  // The same, for a caller that holds `books`.
  Status reconcile_locked() noexcept;
  // As the methods of BlockAllocator, for the group that has the slab.
  bool give_up(SlabId slab) noexcept;
  bool has_given_up(SlabId slab) const noexcept;

  // Number of blocks of the slab in use or set aside, in the group that has the slab.
  std::int32_t used(SlabId slab) const noexcept;
  // As pin_totals(), for a caller that does not hold `books`.
  PinTotals pinned() const noexcept;

  // ---- SlabHolder

  void add_slab(SlabId slab, std::uint32_t generation) noexcept override;
  Status close_slab(SlabId slab) noexcept override;
  void quarantine_slab(SlabId slab) noexcept override;
  void remove_slab(SlabId slab) noexcept override;
  SlabLoad load(SlabId slab) const noexcept override;
  // `free` counts the blocks that the first group could get, `used` those of all groups.
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
