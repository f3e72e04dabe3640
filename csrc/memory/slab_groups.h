// One partition's slabs, shared by the attention groups of its model.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "memory/block_allocator.h"

namespace rose::memory {

// Layers that keep different tokens have blocks of different sizes: each group of them has an
// allocator of its own, with all of its contract, over the same slabs. A slab is of one group at a
// time. It comes to the first; one that no block and no pin holds is any group's that runs out of
// its own, so what a window has left behind becomes room for the layers that keep everything.
//
// For the arbiter this is one holder of slabs: what a slab is lent, pinned, revoked or lost by is
// the same whichever group has it. In a tenant's process the groups go through one door.
//
// Thread rule: any thread; methods take `books`, but for those of SlabHolder and SlabSource, which
// are called under it.
//
// Invariants:
//   1. No slab is of two groups.
//   2. A slab with a block in use, set aside or cached, or with a pin, never changes group, but for
//      cached blocks that the new group needs the room of.
class SlabGroups final : public SlabHolder, private SlabSource {
 public:
  explicit SlabGroups(std::mutex& books) noexcept : books_{books} {}
  SlabGroups(const SlabGroups&) = delete;
  SlabGroups& operator=(const SlabGroups&) = delete;

  // The first has all slabs that are there, the others come without any. Under `books`.
  BlockAllocator* add(std::unique_ptr<BlockAllocator> group) noexcept;
  std::span<const std::unique_ptr<BlockAllocator>> groups() const noexcept { return groups_; }

  // How many slabs more it takes until wanted[g] blocks of group g can be had at the same time, for
  // all groups. InvalidArgument for another number of groups, or less than no block.
  Result<std::int64_t> missing_slabs(std::span<const std::int64_t> wanted) const noexcept;

  // ---- with a door

  // As BlockAllocator::admit_slab(), to whichever group has it, or to the first.
  Status admit_slab(SlabId slab, std::uint32_t generation) noexcept;
  // As BlockAllocator::reconcile(), of all groups.
  Status reconcile() noexcept;
  // The same for who holds `books`.
  Status reconcile_locked() noexcept;

  // Blocks of whichever group has the slab.
  std::int32_t used(SlabId slab) const noexcept;
  // As pin_totals(), for who does not hold `books`.
  PinTotals pinned() const noexcept;

  // ---- SlabHolder

  void add_slab(SlabId slab, std::uint32_t generation) noexcept override;
  Status close_slab(SlabId slab) noexcept override;
  void quarantine_slab(SlabId slab) noexcept override;
  void remove_slab(SlabId slab) noexcept override;
  SlabLoad load(SlabId slab) const noexcept override;
  // Free blocks are those that the first group could have, used ones those of all.
  BlockTotals totals() const noexcept override;
  PinTotals pin_totals() const noexcept override;
  bool includes(const SlabHolder& other) const noexcept override;
  Status audit_slab(SlabId slab, SlabUse use, std::uint32_t generation) const noexcept override;
  Status audit() const noexcept override;

 private:
  std::int64_t spare_beside(const BlockAllocator& group) const noexcept override;
  bool move_spare_to(BlockAllocator& group) noexcept override;

  // Null for a slab of nobody here.
  BlockAllocator* group_of(SlabId slab) const noexcept;

  std::mutex& books_;
  std::vector<std::unique_ptr<BlockAllocator>> groups_;
};

}  // namespace rose::memory
