// Which blocks of a partition's slabs are in use. No locks, no owners: only bits and counts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "memory/bit_set.h"
#include "memory/geometry.h"
#include "memory/slab_holder.h"

namespace rose::memory {

// Thread rule: the caller's lock.
//
// Invariants:
//   1. A block is in use at most once: its bit is set exactly while it is free.
//   2. used(slab) is the number of its blocks in use; open slabs with a free block, and only they,
//      are in the bucket of their free count.
//   3. free_blocks() counts open slabs; capacity and used blocks count open and closed ones.
class BlockMap {
 public:
  explicit BlockMap(const BlockGrid& grid) noexcept;

  const BlockGrid& grid() const noexcept { return grid_; }
  SlabUse use(SlabId slab) const noexcept { return entry(slab).use; }
  std::int32_t used(SlabId slab) const noexcept { return entry(slab).used; }
  std::int32_t pins(SlabId slab) const noexcept { return entry(slab).pins; }
  std::uint32_t generation(SlabId slab) const noexcept { return entry(slab).generation; }
  bool is_idle(SlabId slab) const noexcept { return used(slab) == 0 && pins(slab) == 0; }
  bool has_slab(SlabId slab) const noexcept {
    return slab >= 0 && slab < grid_.shape().slab_count && use(slab) != SlabUse::kAbsent;
  }
  std::int64_t free_blocks() const noexcept { return free_; }
  std::int64_t used_blocks() const noexcept { return used_; }
  std::int64_t capacity_blocks() const noexcept { return capacity_; }

  // kAbsent -> kOpen, with every block free.
  void add(SlabId slab, std::uint32_t generation) noexcept;
  // kOpen -> kClosed.
  void close(SlabId slab) noexcept;
  // kOpen or kClosed -> kQuarantined.
  void quarantine(SlabId slab) noexcept;
  // Any -> kAbsent. Forgets blocks and pins that are still there.
  void remove(SlabId slab) noexcept;

  // Writes n ids to `out`, from the fullest open slabs first so that whole slabs stay empty. False,
  // and nothing taken, when fewer are free.
  bool take(std::int64_t n, BlockId* out) noexcept;
  // InvalidArgument for an id that is out of range, stale (its slab is not ours) or not in use.
  Status check_in_use(BlockId block) const noexcept;
  // Takes all ids back, or on the error of check_in_use() or a repeated id, none.
  Status give(std::span<const BlockId> blocks) noexcept;

  // A hold on a slab that is present; unpin() of an earlier generation changes nothing.
  void pin(SlabId slab) noexcept { ++entry(slab).pins; }
  void unpin(SlabId slab, std::uint32_t generation) noexcept;

  // Recounts everything.
  Status audit() const noexcept;

 private:
  struct Entry {
    BlockRun run;
    std::int32_t used{0};
    std::int32_t pins{0};
    std::uint32_t generation{0};
    SlabUse use{SlabUse::kAbsent};
    // The neighbours in its bucket.
    SlabId next{kNoSlab};
    SlabId previous{kNoSlab};
    // No word before this one has a free bit.
    std::int32_t first_word{0};

    std::int32_t free() const noexcept { return run.count - used; }
  };

  Entry& entry(SlabId slab) noexcept { return entries_[static_cast<std::size_t>(slab)]; }
  const Entry& entry(SlabId slab) const noexcept {
    return entries_[static_cast<std::size_t>(slab)];
  }
  std::uint64_t* words(SlabId slab) noexcept {
    return &free_bits_[static_cast<std::size_t>(slab) * words_per_slab_];
  }
  const std::uint64_t* words(SlabId slab) const noexcept {
    return &free_bits_[static_cast<std::size_t>(slab) * words_per_slab_];
  }
  void link(SlabId slab) noexcept;
  void unlink(SlabId slab) noexcept;
  void take_bits(SlabId slab, std::int32_t n, BlockId* out) noexcept;
  void give_counts(SlabId slab, std::int32_t n) noexcept;

  BlockGrid grid_;
  std::size_t words_per_slab_{0};
  std::vector<Entry> entries_;
  std::vector<std::uint64_t> free_bits_;
  std::vector<SlabId> buckets_;  // by free count: the first slab of a list
  BitSet filled_buckets_;
  std::int64_t free_{0};
  std::int64_t used_{0};
  std::int64_t capacity_{0};
};

}  // namespace rose::memory
