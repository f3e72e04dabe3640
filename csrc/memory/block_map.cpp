#include "memory/block_map.h"

#include <algorithm>
#include <bit>
#include <string>

namespace rose::memory {

namespace {

std::int32_t largest_count(const BlockGrid& grid) noexcept {
  std::int32_t most = 0;
  for (SlabId slab = 0; slab < grid.shape().slab_count; ++slab) {
    most = std::max(most, grid.blocks_of(slab).count);
  }
  return most;
}

constexpr std::uint64_t bit(std::int32_t index) noexcept {
  return std::uint64_t{1} << (index % 64);
}

}  // namespace

BlockMap::BlockMap(const BlockGrid& grid) noexcept
    : grid_{grid},
      words_per_slab_{(static_cast<std::size_t>(largest_count(grid)) + 63) / 64},
      entries_(static_cast<std::size_t>(grid.shape().slab_count)),
      free_bits_(entries_.size() * words_per_slab_, 0),
      buckets_(static_cast<std::size_t>(largest_count(grid)) + 1, kNoSlab),
      filled_buckets_{buckets_.size()} {
  for (SlabId slab = 0; slab < grid.shape().slab_count; ++slab) {
    entry(slab).run = grid.blocks_of(slab);
  }
}

// ---- slabs

void BlockMap::add(SlabId slab, std::uint32_t generation) noexcept {
  Entry& at = entry(slab);
  at.used = at.pins = at.first_word = 0;
  at.generation = generation;
  at.use = SlabUse::kOpen;
  std::uint64_t* word = words(slab);
  std::fill_n(word, at.run.count / 64, ~std::uint64_t{0});
  if (at.run.count % 64 != 0) word[at.run.count / 64] = bit(at.run.count) - 1;
  free_ += at.run.count;
  capacity_ += at.run.count;
  link(slab);
}

void BlockMap::close(SlabId slab) noexcept {
  unlink(slab);
  free_ -= entry(slab).free();
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
  at.use = SlabUse::kAbsent;
  at.used = at.pins = 0;
}

// ---- blocks

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
  std::uint64_t* word = words(slab);
  at.used += n;
  used_ += n;
  free_ -= n;
  while (n > 0) {
    std::uint64_t& bits = word[at.first_word];
    if (bits == 0) {
      ++at.first_word;
      continue;
    }
    *out++ = at.run.first + at.first_word * 64 + std::countr_zero(bits);
    bits &= bits - 1;
    --n;
  }
}

Status BlockMap::check_in_use(BlockId block) const noexcept {
  const SlabId slab = grid_.slab_at(block);
  const std::string name = "block " + std::to_string(block);
  if (slab == kNoSlab) return Status::invalid_argument(name + " is out of range");
  const Entry& at = entry(slab);
  const std::int32_t index = block - at.run.first;
  if (index < 0 || index >= at.run.count)
    return Status::invalid_argument(name + " is out of range");
  if (at.use == SlabUse::kAbsent) {
    return Status::invalid_argument(name + " is stale: slab " + std::to_string(slab) +
                                    " has another owner now");
  }
  if ((words(slab)[index / 64] & bit(index)) != 0) {
    return Status::invalid_argument(name + " is free already");
  }
  return {};
}

Status BlockMap::give(std::span<const BlockId> blocks) noexcept {
  // First the bits, which also catches a repeated id; a failure puts them back.
  for (std::size_t done = 0; done < blocks.size(); ++done) {
    const SlabId slab = grid_.slab_at(blocks[done]);
    const std::int32_t index = slab == kNoSlab ? -1 : blocks[done] - entry(slab).run.first;
    const bool is_ours = index >= 0 && index < entry(slab).run.count &&
                         entry(slab).use != SlabUse::kAbsent &&
                         (words(slab)[index / 64] & bit(index)) == 0;
    if (is_ours) {
      words(slab)[index / 64] |= bit(index);
      continue;
    }
    const Status failure = check_in_use(blocks[done]);
    for (const BlockId block : blocks.first(done)) {
      const SlabId undone = grid_.slab_at(block);
      const std::int32_t at = block - entry(undone).run.first;
      words(undone)[at / 64] &= ~bit(at);
    }
    return failure;
  }
  // Then the counts, one run of ids of the same slab at a time.
  for (std::size_t begin = 0; begin < blocks.size();) {
    const SlabId slab = grid_.slab_at(blocks[begin]);
    Entry& at = entry(slab);
    std::size_t end = begin;
    for (; end < blocks.size() && grid_.slab_at(blocks[end]) == slab; ++end) {
      at.first_word = std::min(at.first_word, (blocks[end] - at.run.first) / 64);
    }
    give_counts(slab, static_cast<std::int32_t>(end - begin));
    begin = end;
  }
  return {};
}

void BlockMap::give_counts(SlabId slab, std::int32_t n) noexcept {
  Entry& at = entry(slab);
  const bool is_open = at.use == SlabUse::kOpen;
  if (is_open) unlink(slab);
  at.used -= n;
  if (at.use != SlabUse::kQuarantined) used_ -= n;
  if (!is_open) return;
  free_ += n;
  link(slab);
}

bool BlockMap::unpin(SlabId slab, std::uint32_t generation) noexcept {
  Entry& at = entry(slab);
  if (at.use == SlabUse::kAbsent || at.generation != generation) return false;
  --at.pins;
  return true;
}

// ---- buckets

void BlockMap::link(SlabId slab) noexcept {
  Entry& at = entry(slab);
  if (at.free() == 0) return;
  const auto bucket = static_cast<std::size_t>(at.free());
  at.previous = kNoSlab;
  at.next = buckets_[bucket];
  if (at.next != kNoSlab) entry(at.next).previous = slab;
  buckets_[bucket] = slab;
  filled_buckets_.set(bucket);
}

void BlockMap::unlink(SlabId slab) noexcept {
  Entry& at = entry(slab);
  if (at.free() == 0) return;
  const auto bucket = static_cast<std::size_t>(at.free());
  if (at.next != kNoSlab) entry(at.next).previous = at.previous;
  if (at.previous != kNoSlab) {
    entry(at.previous).next = at.next;
  } else {
    buckets_[bucket] = at.next;
    if (at.next == kNoSlab) filled_buckets_.clear(bucket);
  }
}

Status BlockMap::audit() const noexcept {
  std::int64_t free = 0;
  std::int64_t used = 0;
  std::int64_t capacity = 0;
  std::vector<std::int32_t> listed(entries_.size(), 0);
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    ROSE_CHECK(filled_buckets_.test(bucket) == (buckets_[bucket] != kNoSlab),
               "the set of filled buckets is wrong");
    for (SlabId slab = buckets_[bucket]; slab != kNoSlab; slab = entry(slab).next) {
      ROSE_CHECK(entry(slab).free() == static_cast<std::int32_t>(bucket),
                 "slab " + std::to_string(slab) + " is in the wrong bucket");
      ROSE_CHECK(++listed[static_cast<std::size_t>(slab)] == 1, "a bucket holds a slab twice");
    }
  }
  for (SlabId slab = 0; slab < grid_.shape().slab_count; ++slab) {
    const Entry& at = entry(slab);
    const std::string name = "slab " + std::to_string(slab);
    const bool is_open = at.use == SlabUse::kOpen;
    ROSE_CHECK((listed[static_cast<std::size_t>(slab)] == 1) == (is_open && at.free() > 0),
               name + " is wrongly in or out of a bucket");
    if (at.use == SlabUse::kAbsent) continue;
    std::int32_t free_here = 0;
    for (std::size_t word = 0; word < words_per_slab_; ++word) {
      free_here += std::popcount(words(slab)[word]);
    }
    ROSE_CHECK(free_here == at.free(), name + ": its bits and its count differ");
    ROSE_CHECK(at.pins >= 0, name + " has fewer pins than none");
    if (is_open) free += free_here;
    if (at.use == SlabUse::kQuarantined) continue;
    used += at.used;
    capacity += at.run.count;
  }
  ROSE_CHECK(free == free_ && used == used_ && capacity == capacity_,
             "the totals of a block map are not the sums of its slabs");
  return {};
}

}  // namespace rose::memory
