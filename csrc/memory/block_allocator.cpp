#include "memory/block_allocator.h"

#include <algorithm>
#include <string>
#include <utility>

namespace rose::memory {

namespace {

Status no_more_ours_to_pin(SlabId slab) noexcept {
  return Status::unavailable("slab " + std::to_string(slab) +
                             " cannot be pinned: it was taken back, with the data of its blocks");
}

Status not_ours_to_pin(SlabId slab) noexcept {
  return Status::invalid_argument("slab " + std::to_string(slab) +
                                  " does not belong to this tenant, so it cannot be pinned");
}

}  // namespace

BlockAllocator::BlockAllocator(const BlockGrid& grid, std::mutex& books, SlabWatcher* watcher,
                               SlabDoor* door) noexcept
    : books_{books},
      watcher_{watcher},
      door_{door},
      map_{grid},
      entered_{static_cast<std::size_t>(grid.shape().slab_count)},
      cache_{map_.slots()},
      keys_(entered_.size(), 0),
      cached_namespaces_(entered_.size(), 0),
      moves_out_of_(entered_.size(), 0) {}

BlockAllocator::BlockAllocator(const BlockGrid& grid, std::mutex& books,
                               SlabWatcher& watcher) noexcept
    : BlockAllocator{grid, books, &watcher, nullptr} {}

BlockAllocator::BlockAllocator(const BlockGrid& grid, std::mutex& books, SlabDoor& door) noexcept
    : BlockAllocator{grid, books, nullptr, &door} {}

// ---- slabs

void BlockAllocator::quarantine_slab(SlabId slab) noexcept {
  forget_keys(slab);
  map_.quarantine(slab);
}

void BlockAllocator::remove_slab(SlabId slab) noexcept {
  forget_keys(slab);
  const auto index = static_cast<std::size_t>(slab);
  entered_.clear(index);
  moves_out_of_[index] = 0;
  map_.remove(slab);
}

Status BlockAllocator::close_slab(SlabId slab) noexcept {
  forget_keys(slab);
  map_.close(slab);
  if (map_.aside(slab) == 0) return {};
  const auto is_leaving = [&](BlockId block) { return map_.holds(slab, block); };
  for (auto& [ticket, blocks] : tickets_) {
    for (const BlockId block : blocks) {
      if (is_leaving(block)) map_.put_back(map_.find(block, slab));
    }
    std::erase_if(blocks, is_leaving);
  }
  return {};
}

// ---- the door

// Enters a slab through the door. False if the tenant has lost the slab since its last use; then
// the slab is removed here, too.
bool BlockAllocator::enter(SlabId slab) noexcept {
  const auto index = static_cast<std::size_t>(slab);
  if (door_ == nullptr || entered_.test(index)) return true;
  if (door_->enter(slab, map_.generation(slab))) {
    entered_.set(index);
    return true;
  }
  remove_slab(slab);
  return false;
}

// Must be called whenever a slab may have become idle, or has fewer pins. A slab that is not idle
// stays as it is.
Status BlockAllocator::settle_slab(SlabId slab) noexcept {
  const SlabUse use = map_.use(slab);
  if (use == SlabUse::kAbsent) return {};
  if (!map_.is_idle(slab)) {
    if (door_ != nullptr && map_.pins(slab) == 0) door_->on_unpinned(slab);
    return {};
  }
  if (door_ == nullptr) return use == SlabUse::kOpen ? Status{} : watcher_->on_slab_idle(slab);
  if (has_given_up(slab)) remove_slab(slab);
  const auto index = static_cast<std::size_t>(slab);
  if (!entered_.test(index)) return {};
  entered_.clear(index);
  if (!door_->leave(slab, map_.generation(slab))) remove_slab(slab);
  return {};
}

Status BlockAllocator::hear_news() noexcept {
  return door_ != nullptr && door_->has_news() ? reconcile_slabs() : Status{};
}

Status BlockAllocator::reconcile() noexcept {
  const std::lock_guard lock{books_};
  return door_ != nullptr ? reconcile_slabs() : Status{};
}

Status BlockAllocator::reconcile_slabs() noexcept {
  for (SlabId slab = 0; slab < grid().shape().slab_count; ++slab) {
    if (!map_.has_slab(slab) || has_given_up(slab)) continue;
    if (door_->is_open(slab, map_.generation(slab))) continue;
    if (!entered_.test(static_cast<std::size_t>(slab))) {
      remove_slab(slab);
    } else if (map_.use(slab) == SlabUse::kOpen) {
      ROSE_TRY(close_slab(slab));
      ROSE_TRY(settle_slab(slab));
    }
  }
  return {};
}

bool BlockAllocator::give_up(SlabId slab) noexcept {
  const auto index = static_cast<std::size_t>(slab);
  if (map_.use(slab) != SlabUse::kClosed || map_.pins(slab) > 0 || moves_out_of_[index] > 0) {
    return false;
  }
  entered_.clear(index);
  door_->leave(slab, map_.generation(slab));
  quarantine_slab(slab);
  return true;
}

Status BlockAllocator::admit_slab(SlabId slab, std::uint32_t generation) noexcept {
  const std::lock_guard lock{books_};
  const std::string name = "slab " + std::to_string(slab);
  if (slab < 0 || slab >= grid().shape().slab_count) {
    return Status::invalid_argument(name + " cannot be admitted: the pool has " +
                                    std::to_string(grid().shape().slab_count) + " slabs");
  }
  if (map_.has_slab(slab)) {
    if (map_.generation(slab) == generation) return {};
    if (!map_.is_idle(slab)) {
      return Status::invalid_argument(name +
                                      " cannot be admitted: it is still in use at generation " +
                                      std::to_string(map_.generation(slab)));
    }
    remove_slab(slab);
  }
  map_.add(slab, generation);
  return {};
}

// ---- blocks

bool BlockAllocator::alloc(std::span<BlockId> out) noexcept {
  const std::lock_guard lock{books_};
  if (!hear_news().ok()) return false;
  return take(static_cast<std::int64_t>(out.size()), out.data());
}

bool BlockAllocator::take(std::int64_t n, BlockId* out) noexcept {
  std::int64_t taken = 0;
  while (n - taken <= map_.free_blocks()) {
    if (taken == n) {
      tell_taken();
      return true;
    }
    const SlabId slab = map_.fullest();
    if (slab == kNoSlab) {
      if (!make_free()) break;
    } else if (enter(slab)) {
      taken += map_.take_from(slab, n - taken, out + taken);
    }
  }
  static_cast<void>(give({out, static_cast<std::size_t>(taken)}));
  return false;
}

// Called when no slab has a free block: drops the cached blocks of one slab.
bool BlockAllocator::make_free() noexcept {
  const SlabId oldest = map_.oldest_cached();
  if (oldest == kNoSlab) return false;
  drop_cached(oldest);
  return true;
}

Status BlockAllocator::free(std::span<const BlockId> blocks) noexcept {
  const std::lock_guard lock{books_};
  return give(blocks);
}

Status BlockAllocator::give(std::span<const BlockId> blocks) noexcept {
  ROSE_TRY(map_.drop(blocks));
  return release(blocks);
}

// Each round releases consecutive ids in `blocks` that lie in the same slab.
Status BlockAllocator::release(std::span<const BlockId> blocks) noexcept {
  while (!blocks.empty()) {
    const SlabId slab = grid().slab_at(blocks.front());
    std::size_t run = 1;
    while (run < blocks.size() && map_.holds(slab, blocks[run])) ++run;
    map_.release(slab, blocks.first(run), [this](BlockPosition at) { return stays_cached(at); });
    ROSE_TRY(settle_slab(slab));
    blocks = blocks.subspan(run);
  }
  return {};
}

Status BlockAllocator::put_back(std::span<const BlockId> blocks) noexcept {
  for (const BlockId block : blocks) {
    const BlockPosition at = map_.find(block);
    map_.put_back(at);
    ROSE_TRY(settle_slab(at.slab));
  }
  return {};
}

// ---- tickets

std::optional<TicketId> BlockAllocator::reserve(std::int64_t n) noexcept {
  const std::lock_guard lock{books_};
  if (!hear_news().ok() || n > map_.free_blocks()) return std::nullopt;
  std::vector<BlockId> blocks(static_cast<std::size_t>(n));
  if (!take(n, blocks.data())) return std::nullopt;
  map_.set_aside(blocks);
  const TicketId ticket = next_id_++;
  tickets_.emplace(ticket, std::move(blocks));
  return ticket;
}

Result<bool> BlockAllocator::commit(TicketId ticket, std::span<BlockId> out) noexcept {
  const std::lock_guard lock{books_};
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) {
    return Status::invalid_argument("ticket " + std::to_string(ticket) +
                                    " has ended or does not exist");
  }
  std::vector<BlockId>& left = found->second;
  if (out.size() > left.size()) return false;
  std::copy_n(left.begin(), out.size(), out.begin());
  for (const BlockId block : out) map_.hand_out(map_.find(block), 1);
  left.erase(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(out.size()));
  if (left.empty() && !out.empty()) tickets_.erase(found);
  return true;
}

Status BlockAllocator::cancel(TicketId ticket) noexcept {
  const std::lock_guard lock{books_};
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) {
    return Status::invalid_argument("ticket " + std::to_string(ticket) +
                                    " has ended or does not exist");
  }
  const std::vector<BlockId> left = std::move(found->second);
  tickets_.erase(found);
  return put_back(left);
}

// ---- pins

Result<PinId> BlockAllocator::pin_blocks(std::span<const BlockId> blocks) noexcept {
  const std::lock_guard lock{books_};
  ROSE_TRY(hear_news());
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
  ROSE_TRY(hear_news());
  std::vector<PinnedSlab> pinned;
  for (const SlabId slab : slabs) {
    if (!map_.has_slab(slab)) return not_ours_to_pin(slab);
    pinned.push_back({slab, map_.generation(slab)});
  }
  return keep_pin(std::move(pinned));
}

// Pins each slab once, however many of its blocks are named.
Result<PinId> BlockAllocator::keep_pin(std::vector<PinnedSlab> slabs) noexcept {
  std::ranges::sort(slabs, {}, &PinnedSlab::slab);
  const auto repeated = std::ranges::unique(slabs, {}, &PinnedSlab::slab);
  slabs.erase(repeated.begin(), repeated.end());
  for (const PinnedSlab& one : slabs) {
    if (has_given_up(one.slab)) return no_more_ours_to_pin(one.slab);
  }
  for (std::size_t done = 0; done < slabs.size(); ++done) {
    if (enter(slabs[done].slab)) {
      map_.pin(slabs[done].slab);
      continue;
    }
    ROSE_TRY(drop_pins({slabs.data(), done}));
    return not_ours_to_pin(slabs[done].slab);
  }
  const PinId pin = next_id_++;
  pins_.emplace_hint(pins_.end(), pin, Pin{BootClock{}.now_ns(), std::move(slabs)});
  return pin;
}

Status BlockAllocator::drop_pins(std::span<const PinnedSlab> slabs) noexcept {
  for (const PinnedSlab& one : slabs) {
    if (map_.unpin(one.slab, one.generation)) ROSE_TRY(settle_slab(one.slab));
  }
  return {};
}

Status BlockAllocator::unpin(PinId pin) noexcept {
  const std::lock_guard lock{books_};
  const auto found = pins_.find(pin);
  if (found == pins_.end()) {
    return Status::invalid_argument("pin " + std::to_string(pin) + " has ended or does not exist");
  }
  const std::vector<PinnedSlab> slabs = std::move(found->second.slabs);
  pins_.erase(found);
  return drop_pins(slabs);
}

// ---- numbers

std::int64_t BlockAllocator::free_blocks() noexcept {
  const std::lock_guard lock{books_};
  static_cast<void>(hear_news());  // alloc() reports its failure
  return map_.free_blocks();
}

std::int64_t BlockAllocator::cached_blocks() const noexcept {
  const std::lock_guard lock{books_};
  return map_.cached_blocks();
}

std::int64_t BlockAllocator::used_blocks() const noexcept {
  const std::lock_guard lock{books_};
  return map_.used_blocks();
}

std::int64_t BlockAllocator::capacity_blocks() const noexcept {
  const std::lock_guard lock{books_};
  return map_.capacity_blocks();
}

std::int32_t BlockAllocator::slabs_in_use() const noexcept {
  const std::lock_guard lock{books_};
  std::int32_t count = 0;
  for (SlabId slab = 0; slab < grid().shape().slab_count; ++slab) {
    if (map_.has_slab(slab) && !map_.is_idle(slab)) ++count;
  }
  return count;
}

std::int32_t BlockAllocator::used(SlabId slab) const noexcept {
  const std::lock_guard lock{books_};
  return map_.has_slab(slab) ? map_.used(slab) : 0;
}

Result<std::uint32_t> BlockAllocator::generation(SlabId slab) const noexcept {
  const std::lock_guard lock{books_};
  if (!map_.has_slab(slab)) {
    return Status::invalid_argument("slab " + std::to_string(slab) +
                                    " does not belong to this tenant");
  }
  return map_.generation(slab);
}

Status BlockAllocator::audit_slab(SlabId slab, SlabUse use,
                                  std::uint32_t generation) const noexcept {
  const std::string name = "slab " + std::to_string(slab);
  ROSE_CHECK(map_.use(slab) == use,
             name + " has different uses in its allocator and in the arbiter");
  ROSE_CHECK(use == SlabUse::kAbsent || map_.generation(slab) == generation,
             name + " has different generations in its allocator and in the arbiter");
  return {};
}

Status BlockAllocator::audit() const noexcept {
  ROSE_TRY(map_.audit());
  ROSE_TRY(cache_.audit());
  ROSE_TRY(audit_aside());
  ROSE_TRY(audit_pins());
  for (SlabId slab = 0; slab < grid().shape().slab_count; ++slab) ROSE_TRY(audit_keys(slab));
  return {};
}

Status BlockAllocator::audit_keys(SlabId slab) const noexcept {
  const auto index = static_cast<std::size_t>(slab);
  const std::string name = "slab " + std::to_string(slab);
  std::int32_t keys = 0;
  for (std::int32_t block = 0; block < map_.count(slab); ++block) {
    const BlockPosition at = map_.place_in(slab, block);
    const std::uint32_t in_namespace = cache_.namespace_of(at.slot);
    keys += in_namespace != 0 ? 1 : 0;
    ROSE_CHECK(in_namespace == 0 || map_.references(at) > 0 || map_.is_cached(at),
               name + " has a key of a block without data");
    ROSE_CHECK(!map_.is_cached(at) || in_namespace == cached_namespaces_[index],
               name + " caches a block without a key, or with keys of two namespaces");
  }
  ROSE_CHECK(keys == keys_[index], name + " has a number of keys that differs from its count");
  ROSE_CHECK(keys == 0 || map_.use(slab) == SlabUse::kOpen, name + " has keys but is not open");
  return {};
}

Status BlockAllocator::audit_aside() const noexcept {
  std::vector<std::int32_t> aside(keys_.size(), 0);
  for (const auto& [ticket, blocks] : tickets_) {
    for (const BlockId block : blocks) {
      const BlockPosition at = map_.find(block);
      ROSE_CHECK(at.slab != kNoSlab && map_.use(at.slab) == SlabUse::kOpen,
                 "ticket " + std::to_string(ticket) + " holds a block of a slab that is not open");
      ++aside[static_cast<std::size_t>(at.slab)];
    }
  }
  for (const auto& [to, move] : moves_) {
    const BlockPosition at = map_.find(to);
    const bool is_there = at.slab != kNoSlab && map_.generation(at.slab) == move.to_generation;
    if (is_there) ++aside[static_cast<std::size_t>(at.slab)];
  }
  for (SlabId slab = 0; slab < grid().shape().slab_count; ++slab) {
    ROSE_CHECK(aside[static_cast<std::size_t>(slab)] == map_.aside(slab),
               "slab " + std::to_string(slab) +
                   " has blocks set aside that belong to no ticket and no move");
  }
  return {};
}

PinTotals BlockAllocator::pinned() const noexcept {
  const std::lock_guard lock{books_};
  return pin_totals();
}

PinTotals BlockAllocator::pin_totals() const noexcept {
  if (pins_.empty()) return {};
  return {static_cast<std::int64_t>(pins_.size()), pins_.begin()->second.since_ns};
}

Status BlockAllocator::audit_pins() const noexcept {
  std::vector<std::int32_t> pins(keys_.size(), 0);
  const auto count = [&](SlabId slab, std::uint32_t generation) {
    if (map_.has_slab(slab) && map_.generation(slab) == generation) {
      ++pins[static_cast<std::size_t>(slab)];
    }
  };
  for (const auto& [id, pin] : pins_) {
    for (const PinnedSlab& one : pin.slabs) count(one.slab, one.generation);
  }
  for (const auto& [to, move] : moves_) count(grid().slab_at(to), move.to_generation);
  for (SlabId slab = 0; slab < grid().shape().slab_count; ++slab) {
    const auto index = static_cast<std::size_t>(slab);
    ROSE_CHECK(
        pins[index] == map_.pins(slab),
        "slab " + std::to_string(slab) + " has a number of pins that differs from its count");
    const bool should_be_in =
        door_ != nullptr && map_.has_slab(slab) && !map_.is_idle(slab) && !has_given_up(slab);
    ROSE_CHECK(
        entered_.test(index) == should_be_in,
        "slab " + std::to_string(slab) + " is in use without having been entered, or was not left");
    ROSE_CHECK(map_.is_draining(slab) == (moves_out_of_[index] > 0),
               "slab " + std::to_string(slab) +
                   " drains without a planned move, or has a planned move without draining");
  }
  return {};
}

}  // namespace rose::memory
