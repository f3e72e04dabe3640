// References and the prefix cache of an allocator.
#include <string>

#include "memory/block_allocator.h"

namespace rose::memory {

// ---- references

Status BlockAllocator::share(std::span<const BlockId> blocks) noexcept {
  const std::lock_guard lock{books_};
  ROSE_TRY(hear_news());
  for (const BlockId block : blocks) {
    const BlockPosition at = map_.find(block);
    if (at.slab == kNoSlab || !map_.is_cached(at)) ROSE_TRY(map_.check_in_use(block));
  }
  for (std::size_t done = 0; done < blocks.size(); ++done) {
    BlockPosition at = map_.find(blocks[done]);
    if (at.slab != kNoSlab && map_.is_cached(at) && !enter(at.slab)) at = {};
    if (at.slab == kNoSlab) {  // the arbiter took the slab after the check above
      ROSE_TRY(give(blocks.first(done)));
      return map_.check_in_use(blocks[done]);
    }
    add_reference(at);
  }
  tell_taken();
  return {};
}

// A hit in the current namespace makes the slab's other cached blocks recent again.
void BlockAllocator::add_reference(BlockPosition at) noexcept {
  const bool is_hit = map_.is_cached(at);
  map_.add_reference(at);
  const bool is_current = cached_namespaces_[static_cast<std::size_t>(at.slab)] == cache_.current();
  if (is_hit && is_current && map_.kept(at.slab) > 0) map_.touch_cached(at.slab);
}

Result<std::int32_t> BlockAllocator::references(BlockId block) const noexcept {
  const std::lock_guard lock{books_};
  const BlockPosition at = map_.find(block);
  if (at.slab == kNoSlab) return map_.check_in_use(block);
  return map_.references(at);
}

// ---- keys

void BlockAllocator::set_cache_namespace(std::string_view name) noexcept {
  const std::lock_guard lock{books_};
  cache_.enter_namespace(name);
  // Moves the slabs with cached blocks of this namespace to the end of the queue, in the same
  // order.
  std::int32_t cached = 0;
  for (SlabId slab = map_.oldest_cached(); slab != kNoSlab; slab = map_.cached_after(slab)) {
    ++cached;
  }
  for (SlabId slab = map_.oldest_cached(); cached > 0; --cached) {
    const SlabId next = map_.cached_after(slab);
    const bool is_current = cached_namespaces_[static_cast<std::size_t>(slab)] == cache_.current();
    if (is_current) map_.touch_cached(slab);
    slab = next;
  }
}

Status BlockAllocator::publish(std::span<const BlockId> blocks,
                               std::span<const BlockKey> keys) noexcept {
  const std::lock_guard lock{books_};
  if (blocks.size() != keys.size()) {
    return Status::invalid_argument("each block needs one key, got " +
                                    std::to_string(blocks.size()) + " blocks and " +
                                    std::to_string(keys.size()) + " keys");
  }
  for (const BlockId block : blocks) ROSE_TRY(map_.check_in_use(block));
  for (std::size_t index = 0; index < blocks.size(); ++index) {
    const BlockPosition at = map_.find(blocks[index]);
    if (map_.use(at.slab) != SlabUse::kOpen) continue;
    const bool had_key = has_key(at);
    if (cache_.insert(at.slot, keys[index]) && !had_key) ++keys_in(at.slab);
  }
  return {};
}

std::size_t BlockAllocator::lookup(std::span<const BlockKey> keys,
                                   std::span<BlockId> out) const noexcept {
  const std::lock_guard lock{books_};
  std::size_t found = 0;
  for (const BlockKey& key : keys) {
    const std::optional<Slot> slot = cache_.find(key);
    if (!slot.has_value()) break;
    out[found++] = map_.block_at(map_.place_of(*slot));
  }
  return found;
}

std::size_t BlockAllocator::acquire(std::span<const BlockKey> keys,
                                    std::span<BlockId> out) noexcept {
  const std::lock_guard lock{books_};
  if (!hear_news().ok()) return 0;
  std::size_t found = 0;
  for (const BlockKey& key : keys) {
    const std::optional<Slot> slot = cache_.find(key);
    if (!slot.has_value()) break;
    const BlockPosition at = map_.place_of(*slot);
    if (map_.is_cached(at) && !enter(at.slab)) break;  // the slab is lost, and so are its keys
    add_reference(at);
    out[found++] = map_.block_at(at);
  }
  tell_taken();
  return found;
}

Status BlockAllocator::forget(std::span<const BlockId> blocks) noexcept {
  const std::lock_guard lock{books_};
  for (const BlockId block : blocks) {
    if (map_.find(block).slab == kNoSlab) return map_.check_in_use(block);
  }
  for (const BlockId block : blocks) {
    const BlockPosition at = map_.find(block);
    erase_key(at);
    if (map_.is_cached(at)) map_.uncache(at);
  }
  return {};
}

void BlockAllocator::forget_all() noexcept {
  const std::lock_guard lock{books_};
  for (SlabId slab = 0; slab < grid().shape().slab_count; ++slab) forget_keys(slab);
}

// ---- keys and cached blocks

// Returns true if a block without references stays cached. Otherwise the block becomes free, and
// this call has removed its key.
bool BlockAllocator::stays_cached(BlockPosition at) noexcept {
  if (!has_key(at)) return false;
  if (cache_.namespace_of(at.slot) != cache_.current() || map_.is_draining(at.slab)) {
    erase_key(at);
    return false;
  }
  std::uint32_t& cached_namespace = cached_namespaces_[static_cast<std::size_t>(at.slab)];
  if (cached_namespace != cache_.current()) {
    drop_cached(at.slab);
    cached_namespace = cache_.current();
  }
  return true;
}

void BlockAllocator::erase_key(BlockPosition at) noexcept {
  if (!has_key(at)) return;
  cache_.erase(at.slot);
  --keys_in(at.slab);
}

void BlockAllocator::drop_cached(SlabId slab) noexcept {
  map_.evict(slab, [this](BlockPosition at) { erase_key(at); });
}

void BlockAllocator::forget_keys(SlabId slab) noexcept {
  if (keys_in(slab) == 0) return;
  drop_cached(slab);
  for (std::int32_t index = 0; keys_in(slab) > 0; ++index) erase_key(map_.place_in(slab, index));
}

}  // namespace rose::memory
