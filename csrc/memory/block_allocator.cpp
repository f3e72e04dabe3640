#include "memory/block_allocator.h"

#include <algorithm>
#include <string>
#include <utility>

namespace rose::memory {

BlockAllocator::BlockAllocator(const BlockGrid& grid, std::mutex& books,
                               SlabWatcher& watcher) noexcept
    : books_{books}, watcher_{watcher}, map_{grid} {}

// ---- blocks

bool BlockAllocator::alloc(std::span<BlockId> out) noexcept {
  const std::lock_guard lock{books_};
  const bool is_taken = map_.take(static_cast<std::int64_t>(out.size()), out.data());
  watcher_.on_blocks_taken(*this);
  return is_taken;
}

Status BlockAllocator::free(std::span<const BlockId> blocks) noexcept {
  const std::lock_guard lock{books_};
  return give(blocks);
}

Status BlockAllocator::free_checked(BlockId block, std::uint32_t generation) noexcept {
  const std::lock_guard lock{books_};
  ROSE_TRY(map_.check_in_use(block));
  const SlabId slab = grid().slab_at(block);
  if (map_.generation(slab) != generation) {
    return Status::invalid_argument("block " + std::to_string(block) + " is stale: slab " +
                                    std::to_string(slab) + " is at generation " +
                                    std::to_string(map_.generation(slab)) + ", not " +
                                    std::to_string(generation));
  }
  return give({&block, 1});
}

Status BlockAllocator::give(std::span<const BlockId> blocks) noexcept {
  ROSE_TRY(map_.give(blocks));
  SlabId last = kNoSlab;
  for (const BlockId block : blocks) {
    const SlabId slab = grid().slab_at(block);
    if (slab == last) continue;
    ROSE_TRY(report_if_idle(slab));
    last = slab;
  }
  return {};
}

Status BlockAllocator::report_if_idle(SlabId slab) noexcept {
  const SlabUse use = map_.use(slab);
  const bool is_leaving = use == SlabUse::kClosed || use == SlabUse::kQuarantined;
  return is_leaving && map_.is_idle(slab) ? watcher_.on_slab_idle(slab) : Status{};
}

// ---- tickets

std::optional<TicketId> BlockAllocator::reserve(std::int64_t n) noexcept {
  const std::lock_guard lock{books_};
  if (n > map_.free_blocks()) return std::nullopt;
  std::vector<BlockId> blocks(static_cast<std::size_t>(n));
  map_.take(n, blocks.data());
  watcher_.on_blocks_taken(*this);
  const TicketId ticket = next_id_++;
  tickets_.emplace(ticket, std::move(blocks));
  return ticket;
}

Result<bool> BlockAllocator::commit(TicketId ticket, std::span<BlockId> out) noexcept {
  const std::lock_guard lock{books_};
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) {
    return Status::invalid_argument("ticket " + std::to_string(ticket) + " is over or never was");
  }
  std::vector<BlockId>& left = found->second;
  if (out.size() > left.size()) return false;
  std::copy_n(left.begin(), out.size(), out.begin());
  left.erase(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(out.size()));
  if (left.empty() && !out.empty()) tickets_.erase(found);
  return true;
}

Status BlockAllocator::cancel(TicketId ticket) noexcept {
  const std::lock_guard lock{books_};
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) {
    return Status::invalid_argument("ticket " + std::to_string(ticket) + " is over or never was");
  }
  const std::vector<BlockId> left = std::move(found->second);
  tickets_.erase(found);
  return give(left);
}

Status BlockAllocator::close_slab(SlabId slab) noexcept {
  map_.close(slab);
  const auto is_leaving = [&](BlockId block) { return grid().slab_at(block) == slab; };
  for (auto& [ticket, blocks] : tickets_) {
    const auto leaving = std::stable_partition(blocks.begin(), blocks.end(),
                                               [&](BlockId block) { return !is_leaving(block); });
    ROSE_TRY(map_.give({leaving, blocks.end()}));
    blocks.erase(leaving, blocks.end());
  }
  return {};
}

// ---- pins

Result<PinId> BlockAllocator::pin_blocks(std::span<const BlockId> blocks) noexcept {
  const std::lock_guard lock{books_};
  std::vector<PinnedSlab> slabs;
  for (const BlockId block : blocks) {
    ROSE_TRY(map_.check_in_use(block));
    const SlabId slab = grid().slab_at(block);
    if (!slabs.empty() && slabs.back().slab == slab) continue;
    slabs.push_back({slab, map_.generation(slab)});
  }
  return keep_pin(std::move(slabs));
}

Result<PinId> BlockAllocator::pin_slabs(std::span<const SlabId> slabs) noexcept {
  const std::lock_guard lock{books_};
  std::vector<PinnedSlab> pinned;
  for (const SlabId slab : slabs) {
    if (!map_.has_slab(slab)) {
      return Status::invalid_argument("slab " + std::to_string(slab) + " is not ours to pin");
    }
    pinned.push_back({slab, map_.generation(slab)});
  }
  return keep_pin(std::move(pinned));
}

// One hold for each slab, however many of its blocks were named.
PinId BlockAllocator::keep_pin(std::vector<PinnedSlab> slabs) noexcept {
  std::ranges::sort(slabs, {}, &PinnedSlab::slab);
  const auto repeated = std::ranges::unique(slabs, {}, &PinnedSlab::slab);
  slabs.erase(repeated.begin(), repeated.end());
  for (const PinnedSlab& one : slabs) map_.pin(one.slab);
  const PinId pin = next_id_++;
  pins_.emplace(pin, std::move(slabs));
  return pin;
}

Status BlockAllocator::unpin(PinId pin) noexcept {
  const std::lock_guard lock{books_};
  const auto found = pins_.find(pin);
  if (found == pins_.end()) {
    return Status::invalid_argument("pin " + std::to_string(pin) + " is over or never was");
  }
  const std::vector<PinnedSlab> slabs = std::move(found->second);
  pins_.erase(found);
  for (const PinnedSlab& one : slabs) {
    map_.unpin(one.slab, one.generation);
    ROSE_TRY(report_if_idle(one.slab));
  }
  return {};
}

// ---- numbers

std::int64_t BlockAllocator::free_blocks() const noexcept {
  const std::lock_guard lock{books_};
  return map_.free_blocks();
}

std::int64_t BlockAllocator::used_blocks() const noexcept {
  const std::lock_guard lock{books_};
  return map_.used_blocks();
}

std::int64_t BlockAllocator::capacity_blocks() const noexcept {
  const std::lock_guard lock{books_};
  return map_.capacity_blocks();
}

std::int32_t BlockAllocator::used(SlabId slab) const noexcept {
  const std::lock_guard lock{books_};
  return map_.has_slab(slab) ? map_.used(slab) : 0;
}

Result<std::uint32_t> BlockAllocator::generation(SlabId slab) const noexcept {
  const std::lock_guard lock{books_};
  if (!map_.has_slab(slab)) {
    return Status::invalid_argument("slab " + std::to_string(slab) + " is not ours");
  }
  return map_.generation(slab);
}

Status BlockAllocator::audit_slab(SlabId slab, SlabUse use,
                                  std::uint32_t generation) const noexcept {
  const std::string name = "slab " + std::to_string(slab);
  ROSE_CHECK(map_.use(slab) == use, name + " is not to its allocator what it is to the arbiter");
  ROSE_CHECK(use == SlabUse::kAbsent || map_.generation(slab) == generation,
             name + " has two generations");
  return {};
}

Status BlockAllocator::audit() const noexcept {
  ROSE_TRY(map_.audit());
  for (const auto& [ticket, blocks] : tickets_) {
    for (const BlockId block : blocks) {
      ROSE_CHECK(map_.check_in_use(block).ok() && map_.use(grid().slab_at(block)) == SlabUse::kOpen,
                 "ticket " + std::to_string(ticket) + " holds a block that is not set aside");
    }
  }
  std::unordered_map<SlabId, std::int32_t> held;
  for (const auto& [pin, slabs] : pins_) {
    for (const PinnedSlab& one : slabs) {
      if (map_.has_slab(one.slab) && map_.generation(one.slab) == one.generation) ++held[one.slab];
    }
  }
  for (SlabId slab = 0; slab < grid().shape().slab_count; ++slab) {
    ROSE_CHECK(!map_.has_slab(slab) || map_.pins(slab) == held[slab],
               "slab " + std::to_string(slab) + " has another number of pins than is held");
  }
  return {};
}

}  // namespace rose::memory
