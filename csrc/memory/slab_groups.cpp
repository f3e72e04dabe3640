#include "memory/slab_groups.h"

#include <algorithm>
#include <string>
#include <utility>

namespace rose::memory {

BlockAllocator* SlabGroups::add(std::unique_ptr<BlockAllocator> group) noexcept {
  groups_.push_back(std::move(group));
  // A single group has no other groups to take slabs from.
  if (groups_.size() > 1) {
    for (const auto& one : groups_) one->source_ = this;
  }
  return groups_.back().get();
}

BlockAllocator* SlabGroups::group_of(SlabId slab) const noexcept {
  for (const auto& group : groups_) {
    if (group->map_.has_slab(slab)) return group.get();
  }
  return nullptr;
}

// ---- numbers

Result<std::int64_t> SlabGroups::missing_slabs(
    std::span<const std::int64_t> wanted) const noexcept {
  const std::lock_guard lock{books_};
  if (wanted.size() != groups_.size()) {
    return Status::invalid_argument("wanted must have one number per group, got " +
                                    std::to_string(wanted.size()) + " numbers for " +
                                    std::to_string(groups_.size()) + " groups");
  }
  std::int64_t missing = 0;
  for (std::size_t index = 0; index < wanted.size(); ++index) {
    if (wanted[index] < 0)
      return Status::invalid_argument(
          "the wanted number of blocks of each group must be at least "
          "0, got " +
          std::to_string(wanted[index]));
    const BlockMap& map = groups_[index]->map_;
    const std::int64_t loose = map.free_blocks() - map.spare_blocks();
    const std::int64_t beyond = std::max<std::int64_t>(wanted[index] - loose, 0);
    missing += (beyond + map.fewest_blocks() - 1) / map.fewest_blocks() - map.spare_slabs();
  }
  return std::max<std::int64_t>(missing, 0);
}

std::int32_t SlabGroups::used(SlabId slab) const noexcept {
  const std::lock_guard lock{books_};
  return load(slab).used;
}

// ---- slabs that change group

std::int64_t SlabGroups::spare_beside(const BlockAllocator& group) const noexcept {
  std::int64_t spare = 0;
  for (const auto& other : groups_) {
    if (other.get() != &group) spare += other->map_.spare_slabs();
  }
  return spare;
}

// Moves a spare slab of another group to `group`, if possible one without cached blocks. Returns
// false if no other group has a spare slab.
bool SlabGroups::move_spare_to(BlockAllocator& group) noexcept {
  BlockAllocator* from = nullptr;
  SlabId found = kNoSlab;
  for (const auto& other : groups_) {
    if (other.get() == &group || other->map_.spare_slabs() == 0) continue;
    for (SlabId slab = 0; slab < group.grid().shape().slab_count; ++slab) {
      if (!other->map_.is_spare(slab)) continue;
      const bool is_empty = other->map_.kept(slab) == 0;
      if (found == kNoSlab || is_empty) {
        from = other.get();
        found = slab;
      }
      if (is_empty) break;
    }
    if (found != kNoSlab && from->map_.kept(found) == 0) break;
  }
  if (found == kNoSlab) return false;
  const std::uint32_t generation = from->map_.generation(found);
  from->remove_slab(found);
  group.add_slab(found, generation);
  return true;
}

// ---- with a door

Status SlabGroups::admit_slab(SlabId slab, std::uint32_t generation) noexcept {
  BlockAllocator* group = nullptr;
  {
    const std::lock_guard lock{books_};
    if (groups_.empty())
      return Status::invalid_argument("the tenant has no allocator yet: add one first");
    group = group_of(slab);
  }
  return (group != nullptr ? *group : *groups_.front()).admit_slab(slab, generation);
}

Status SlabGroups::reconcile() noexcept {
  const std::lock_guard lock{books_};
  return reconcile_locked();
}

Status SlabGroups::reconcile_locked() noexcept {
  for (const auto& group : groups_) ROSE_TRY(group->reconcile_slabs());
  return {};
}

bool SlabGroups::give_up(SlabId slab) noexcept {
  BlockAllocator* const group = group_of(slab);
  return group != nullptr && group->give_up(slab);
}

bool SlabGroups::has_given_up(SlabId slab) const noexcept {
  const BlockAllocator* const group = group_of(slab);
  return group != nullptr && group->has_given_up(slab);
}

PinTotals SlabGroups::pinned() const noexcept {
  const std::lock_guard lock{books_};
  return pin_totals();
}

// ---- SlabHolder

void SlabGroups::add_slab(SlabId slab, std::uint32_t generation) noexcept {
  groups_.front()->add_slab(slab, generation);
}

Status SlabGroups::close_slab(SlabId slab) noexcept {
  BlockAllocator* const group = group_of(slab);
  return group != nullptr ? group->close_slab(slab) : Status{};
}

void SlabGroups::quarantine_slab(SlabId slab) noexcept {
  if (BlockAllocator* const group = group_of(slab)) group->quarantine_slab(slab);
}

void SlabGroups::remove_slab(SlabId slab) noexcept {
  if (BlockAllocator* const group = group_of(slab)) group->remove_slab(slab);
}

SlabLoad SlabGroups::load(SlabId slab) const noexcept {
  const BlockAllocator* const group = group_of(slab);
  return group != nullptr ? group->load(slab) : SlabLoad{};
}

BlockTotals SlabGroups::totals() const noexcept {
  BlockTotals all{groups_.front()->totals().free, 0};
  for (const auto& group : groups_) all.used += group->totals().used;
  return all;
}

PinTotals SlabGroups::pin_totals() const noexcept {
  PinTotals all;
  for (const auto& group : groups_) all.add(group->pin_totals());
  return all;
}

bool SlabGroups::includes(const SlabHolder& other) const noexcept {
  return this == &other ||
         std::ranges::any_of(groups_, [&](const auto& group) { return group.get() == &other; });
}

Status SlabGroups::audit_slab(SlabId slab, SlabUse use, std::uint32_t generation) const noexcept {
  const BlockAllocator* const group = group_of(slab);
  return (group != nullptr ? *group : *groups_.front()).audit_slab(slab, use, generation);
}

Status SlabGroups::audit() const noexcept {
  for (const auto& group : groups_) ROSE_TRY(group->audit());
  for (SlabId slab = 0; slab < groups_.front()->grid().shape().slab_count; ++slab) {
    const auto owners = std::ranges::count_if(
        groups_, [&](const auto& group) { return group->map_.has_slab(slab); });
    ROSE_CHECK(owners <= 1, "slab " + std::to_string(slab) + " belongs to two groups");
  }
  return {};
}

}  // namespace rose::memory
