#include "memory/block_map.h"

#include <algorithm>
#include <string>

namespace rose::memory {

namespace {

std::uint32_t largest_count(const BlockGrid& grid) noexcept {
  std::int32_t most = 0;
  for (SlabId slab = 0; slab < grid.shape().slab_count; ++slab) {
    most = std::max(most, grid.blocks_of(slab).count);
  }
  return static_cast<std::uint32_t>(most);
}

constexpr std::uint64_t bit(std::int32_t index) noexcept {
  return std::uint64_t{1} << (index % 64);
}

}  // namespace

BlockMap::BlockMap(const BlockGrid& grid) noexcept
    : grid_{grid},
      blocks_per_slab_{largest_count(grid)},
      words_per_slab_{(std::size_t{blocks_per_slab_} + 63) / 64},
      entries_(static_cast<std::size_t>(grid.shape().slab_count)),
      free_bits_(entries_.size() * words_per_slab_, 0),
      cached_bits_(free_bits_.size(), 0),
      references_(entries_.size() * blocks_per_slab_, 0),
      buckets_(std::size_t{blocks_per_slab_} + 1, kNoSlab),
      filled_buckets_{buckets_.size()},
      queue_{entries_.size()} {
  for (SlabId slab = 0; slab < grid.shape().slab_count; ++slab) {
    entry(slab).run = grid.blocks_of(slab);
    reset(slab);
  }
}

// ---- slabs

// Marks all blocks of the slab free. Absent slabs are kept in this state, so that add() need not
// write each block.
void BlockMap::reset(SlabId slab) noexcept {
  const std::int32_t count = entry(slab).run.count;
  std::uint64_t* word = words(free_bits_, slab);
  std::fill_n(word, count / 64, ~std::uint64_t{0});
  if (count % 64 != 0) word[count / 64] = bit(count) - 1;
  std::fill_n(words(cached_bits_, slab), words_per_slab_, 0);
  std::fill_n(&references_[place_in(slab, 0).slot], count, 0);
}

void BlockMap::add(SlabId slab, std::uint32_t generation) noexcept {
  Entry& at = entry(slab);
  at.generation = generation;
  at.use = SlabUse::kOpen;
  capacity_ += at.run.count;
  link(slab);
}

void BlockMap::close(SlabId slab) noexcept {
  unlink(slab);
  entry(slab).use = SlabUse::kClosed;
}

void BlockMap::quarantine(SlabId slab) noexcept {
  if (entry(slab).use == SlabUse::kOpen) close(slab);
  used_ -= entry(slab).used;
  capacity_ -= entry(slab).run.count;
  entry(slab).use = SlabUse::kQuarantined;
}

void BlockMap::remove(SlabId slab) noexcept {
  if (entry(slab).use != SlabUse::kQuarantined) quarantine(slab);
  Entry& at = entry(slab);
  cached_ -= at.kept;
  queue_.remove(slab);
  if (at.used > 0 || at.kept > 0) reset(slab);
  at.use = SlabUse::kAbsent;
  at.is_draining = false;
  at.used = at.kept = at.aside = at.pins = at.first_word = 0;
}

void BlockMap::set_draining(SlabId slab, bool is_draining) noexcept {
  unlink(slab);
  entry(slab).is_draining = is_draining;
  link(slab);
}

// ---- places

BlockPosition BlockMap::find(BlockId block, SlabId near) const noexcept {
  if (near != kNoSlab && entry(near).has(block)) return place_in(near, entry(near).index_of(block));
  const SlabId slab = grid_.slab_at(block);
  if (slab == kNoSlab || !entry(slab).has(block) || use(slab) == SlabUse::kAbsent) return {};
  return place_in(slab, entry(slab).index_of(block));
}

BlockPosition BlockMap::place_of(std::uint32_t slot) const noexcept {
  return {static_cast<SlabId>(slot / blocks_per_slab_),
          static_cast<std::int32_t>(slot % blocks_per_slab_), slot};
}

Status BlockMap::check_in_use(BlockId block) const noexcept {
  const BlockPosition at = find(block);
  return at.slab != kNoSlab && state(at) > 0 ? Status{} : why_not_in_use(block);
}

Status BlockMap::why_not_in_use(BlockId block) const noexcept {
  const std::string name = "block " + std::to_string(block);
  const SlabId slab = grid_.slab_at(block);
  if (slab == kNoSlab || !entry(slab).has(block)) {
    return Status::invalid_argument(name + " is out of range: no slab contains it");
  }
  if (entry(slab).use == SlabUse::kAbsent) {
    return Status::invalid_argument(name + " is stale: slab " + std::to_string(slab) +
                                    " no longer belongs to this tenant");
  }
  const BlockPosition at = place_in(slab, entry(slab).index_of(block));
  if (state(at) == kAside) {
    return Status::invalid_argument(name + " is not in use: a ticket or a move has set it aside");
  }
  if (is_dropped(at)) {
    return Status::invalid_argument(name +
                                    " is freed more often in this call than it has references");
  }
  return Status::invalid_argument(name + " is not in use: it is free already");
}

// ---- taking

SlabId BlockMap::fullest() const noexcept {
  const std::size_t least = filled_buckets_.find(1);
  return least == filled_buckets_.size() ? kNoSlab : buckets_[least];
}

std::int32_t BlockMap::take_from(SlabId slab, std::int64_t n, BlockId* out) noexcept {
  const auto part = static_cast<std::int32_t>(std::min<std::int64_t>(n, entry(slab).free()));
  unlink(slab);
  take_bits(slab, part, out);
  link(slab);
  return part;
}

void BlockMap::take_bits(SlabId slab, std::int32_t n, BlockId* out) noexcept {
  Entry& at = entry(slab);
  std::uint64_t* word = words(free_bits_, slab);
  std::int32_t* references = &references_[place_in(slab, 0).slot];
  count_used(at, n);
  while (n > 0) {
    std::uint64_t& bits = word[at.first_word];
    if (bits == 0) {
      ++at.first_word;
      continue;
    }
    const std::int32_t index = at.first_word * 64 + std::countr_zero(bits);
    *out++ = at.run.first + index;
    references[index] = 1;
    bits &= bits - 1;
    --n;
  }
}

void BlockMap::add_reference(BlockPosition at) noexcept {
  if (state(at) > 0) {
    ++state(at);
    return;
  }
  unlink(at.slab);
  clear_cached(at);
  state(at) = 1;
  count_used(entry(at.slab), 1);
  link(at.slab);
}

// ---- giving

Status BlockMap::drop(std::span<const BlockId> blocks) noexcept {
  SlabId near = kNoSlab;
  for (std::size_t done = 0; done < blocks.size(); ++done) {
    const BlockPosition at = find(blocks[done], near);
    if (at.slab != kNoSlab && state(at) > 0) {
      --state(at);
      near = at.slab;
      continue;
    }
    Status failure = why_not_in_use(blocks[done]);
    undo_drop(blocks.first(done));
    return failure;
  }
  return {};
}

void BlockMap::undo_drop(std::span<const BlockId> blocks) noexcept {
  for (const BlockId block : blocks) ++state(find(block));
}

void BlockMap::set_free(BlockPosition at) noexcept {
  state(at) = 0;
  words(free_bits_, at.slab)[at.index / 64] |= bit(at.index);
  std::int32_t& first_word = entry(at.slab).first_word;
  first_word = std::min(first_word, at.index / 64);
}

void BlockMap::set_cached(BlockPosition at) noexcept {
  state(at) = kCached;
  words(cached_bits_, at.slab)[at.index / 64] |= bit(at.index);
}

void BlockMap::clear_cached(BlockPosition at) noexcept {
  words(cached_bits_, at.slab)[at.index / 64] &= ~bit(at.index);
  --cached_;
  if (--entry(at.slab).kept == 0) queue_.remove(at.slab);
}

void BlockMap::count_released(SlabId slab, std::int32_t dropped, std::int32_t cached) noexcept {
  Entry& at = entry(slab);
  unlink(slab);
  count_used(at, -dropped);
  at.kept += cached;
  cached_ += cached;
  link(slab);
  if (cached > 0) queue_.touch(slab);
}

void BlockMap::count_used(Entry& at, std::int32_t more) noexcept {
  at.used += more;
  if (at.use != SlabUse::kQuarantined) used_ += more;
}

// ---- set aside

void BlockMap::set_aside(std::span<const BlockId> blocks) noexcept {
  SlabId near = kNoSlab;
  for (const BlockId block : blocks) {
    const BlockPosition at = find(block, near);
    near = at.slab;
    state(at) = kAside;
    ++entry(at.slab).aside;
  }
}

void BlockMap::hand_out(BlockPosition at, std::int32_t references) noexcept {
  state(at) = references;
  --entry(at.slab).aside;
}

void BlockMap::put_back(BlockPosition at) noexcept {
  set_free(at);
  --entry(at.slab).aside;
  count_released(at.slab, 1, 0);
}

void BlockMap::free_used(BlockPosition at) noexcept {
  set_free(at);
  count_released(at.slab, 1, 0);
}

// ---- cached

void BlockMap::uncache(BlockPosition at) noexcept {
  unlink(at.slab);
  clear_cached(at);
  set_free(at);
  link(at.slab);
}

// ---- pins

bool BlockMap::unpin(SlabId slab, std::uint32_t generation) noexcept {
  Entry& at = entry(slab);
  if (at.use == SlabUse::kAbsent || at.generation != generation) return false;
  --at.pins;
  return true;
}

// ---- buckets

void BlockMap::link(SlabId slab) noexcept {
  Entry& at = entry(slab);
  if (!at.gives() || at.free() == 0) return;
  free_ += at.free();
  const std::size_t bucket = at.bucket();
  at.previous = kNoSlab;
  at.next = buckets_[bucket];
  if (at.next != kNoSlab) entry(at.next).previous = slab;
  buckets_[bucket] = slab;
  filled_buckets_.set(bucket);
}

void BlockMap::unlink(SlabId slab) noexcept {
  Entry& at = entry(slab);
  if (!at.gives() || at.free() == 0) return;
  free_ -= at.free();
  const std::size_t bucket = at.bucket();
  if (at.next != kNoSlab) entry(at.next).previous = at.previous;
  if (at.previous != kNoSlab) {
    entry(at.previous).next = at.next;
  } else {
    buckets_[bucket] = at.next;
    if (at.next == kNoSlab) filled_buckets_.clear(bucket);
  }
}

// ---- recounting

Status BlockMap::audit() const noexcept {
  std::vector<std::int32_t> listed(entries_.size(), 0);
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    ROSE_CHECK(filled_buckets_.test(bucket) == (buckets_[bucket] != kNoSlab),
               "the set of nonempty buckets is wrong");
    for (SlabId slab = buckets_[bucket]; slab != kNoSlab; slab = entry(slab).next) {
      ROSE_CHECK(entry(slab).bucket() == bucket,
                 "slab " + std::to_string(slab) + " is in the wrong bucket");
      ROSE_CHECK(++listed[static_cast<std::size_t>(slab)] == 1, "a bucket holds a slab twice");
    }
  }
  std::int64_t free = 0;
  std::int64_t cached = 0;
  std::int64_t used = 0;
  std::int64_t capacity = 0;
  for (SlabId slab = 0; slab < grid_.shape().slab_count; ++slab) {
    const Entry& at = entry(slab);
    ROSE_CHECK(
        (listed[static_cast<std::size_t>(slab)] == 1) == (at.gives() && at.free() > 0),
        "slab " + std::to_string(slab) + " is wrongly in a bucket, or wrongly missing from all");
    ROSE_TRY(audit_slab(slab));
    if (at.use == SlabUse::kAbsent) continue;
    if (at.gives()) free += at.free();
    cached += at.kept;
    if (at.use == SlabUse::kQuarantined) continue;
    used += at.used;
    capacity += at.run.count;
  }
  ROSE_CHECK(free == free_ && cached == cached_ && used == used_ && capacity == capacity_,
             "the totals of a block map differ from the sums over its slabs");
  return {};
}

Status BlockMap::audit_slab(SlabId slab) const noexcept {
  const Entry& at = entry(slab);
  const std::string name = "slab " + std::to_string(slab);
  std::int32_t free = 0;
  std::int32_t cached = 0;
  std::int32_t aside = 0;
  for (std::int32_t index = 0; index < at.run.count; ++index) {
    const BlockPosition place = place_in(slab, index);
    const bool has_cached_bit = (words(cached_bits_, slab)[index / 64] & bit(index)) != 0;
    ROSE_CHECK(!is_dropped(place) && is_free(place) == (state(place) == 0),
               name + " has a block in two states, or in none");
    ROSE_CHECK(has_cached_bit == is_cached(place), name + " has lost a cached block");
    free += is_free(place) ? 1 : 0;
    cached += is_cached(place) ? 1 : 0;
    aside += state(place) == kAside ? 1 : 0;
  }
  ROSE_CHECK(free == at.free() && cached == at.kept && aside == at.aside,
             name + ": its bits differ from its counts");
  ROSE_CHECK(queue_.has(slab) == (at.kept > 0),
             name + " is wrongly in the queue, or wrongly missing from it");
  ROSE_CHECK(at.pins >= 0, name + " has a negative number of pins");
  ROSE_CHECK(at.use != SlabUse::kAbsent || (free == at.run.count && at.pins == 0),
             name + " is absent but in use");
  return {};
}

}  // namespace rose::memory
