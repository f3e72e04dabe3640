// Bits and counts that say how each block of a partition's slabs is used; no locks and no owners.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "memory/bit_set.h"
#include "memory/geometry.h"
#include "memory/slab_holder.h"
#include "memory/slab_queue.h"

namespace rose::memory {

// A block of a present slab; `slab` is kNoSlab if there is no such block.
struct BlockPosition {
  SlabId slab{kNoSlab};
  std::int32_t index{0};  // index of the block in its slab
  std::uint32_t slot{0};  // number among the blocks of all slabs
};

// A block is free, in use with one reference or more, set aside (reserved without data), or cached
// (unreferenced, with data that may be wanted again). Cached blocks delay no revocation: a slab
// whose blocks are all cached or free is idle, and evict() frees the cached ones.
//
// Thread rule: the caller's lock.
//
// Invariants:
//   1. A block's free bit is set exactly while the block is free, and its references are counted
//      exactly while it is in use. So no block is given twice.
//   2. used(slab) is the slab's number of blocks in use or set aside, and kept(slab) its number of
//      cached blocks. A slab is in a bucket exactly while it gives blocks (is open, not draining)
//      and has a free block; the number of its bucket is count - used. A slab is in the queue
//      exactly while it has a cached block.
//   3. free_blocks() counts the free blocks of slabs that give blocks, and all cached blocks.
//      capacity_blocks() and used_blocks() count over open and closed slabs.
class BlockMap {
 public:
  explicit BlockMap(const BlockGrid& grid) noexcept;

  const BlockGrid& grid() const noexcept { return grid_; }
  SlabUse use(SlabId slab) const noexcept { return entry(slab).use; }
  std::int32_t used(SlabId slab) const noexcept { return entry(slab).used; }
  std::int32_t free_in(SlabId slab) const noexcept { return entry(slab).free(); }
  std::int32_t kept(SlabId slab) const noexcept { return entry(slab).kept; }
  std::int32_t count(SlabId slab) const noexcept { return entry(slab).run.count; }
  std::int32_t aside(SlabId slab) const noexcept { return entry(slab).aside; }
  std::int32_t pins(SlabId slab) const noexcept { return entry(slab).pins; }
  std::uint32_t generation(SlabId slab) const noexcept { return entry(slab).generation; }
  bool is_idle(SlabId slab) const noexcept { return used(slab) == 0 && pins(slab) == 0; }
  bool is_draining(SlabId slab) const noexcept { return entry(slab).is_draining; }
  bool has_slab(SlabId slab) const noexcept {
    return slab >= 0 && slab < grid_.shape().slab_count && use(slab) != SlabUse::kAbsent;
  }
  bool holds(SlabId slab, BlockId block) const noexcept { return entry(slab).has(block); }
  std::int64_t free_blocks() const noexcept { return free_ + cached_; }
  std::int64_t used_blocks() const noexcept { return used_; }
  std::int64_t cached_blocks() const noexcept { return cached_; }
  std::int64_t capacity_blocks() const noexcept { return capacity_; }
  std::size_t slots() const noexcept { return references_.size(); }

  // ---- slabs

  // kAbsent -> kOpen, with every block free.
  void add(SlabId slab, std::uint32_t generation) noexcept;
  // kOpen -> kClosed.
  void close(SlabId slab) noexcept;
  // kOpen or kClosed -> kQuarantined.
  void quarantine(SlabId slab) noexcept;
  // Any -> kAbsent. Forgets blocks and pins that are still there.
  void remove(SlabId slab) noexcept;
  // A draining slab gives no blocks, like a closed one; unlike closing, draining can end.
  void set_draining(SlabId slab, bool is_draining) noexcept;

  // ---- places

  // Finds a block. `near`, a present slab or kNoSlab, is tried first, because callers list the ids
  // of one slab together.
  BlockPosition find(BlockId block, SlabId near = kNoSlab) const noexcept;
  BlockPosition place_of(std::uint32_t slot) const noexcept;
  BlockPosition place_in(SlabId slab, std::int32_t index) const noexcept {
    return {
        slab, index,
        static_cast<std::uint32_t>(slab) * blocks_per_slab_ + static_cast<std::uint32_t>(index)};
  }
  BlockId block_at(BlockPosition at) const noexcept { return entry(at.slab).run.first + at.index; }
  // 0 unless the block is in use.
  std::int32_t references(BlockPosition at) const noexcept { return std::max(state(at), 0); }
  bool is_cached(BlockPosition at) const noexcept { return state(at) == kCached; }
  // True if the block has no reference left but was not released by release() yet.
  bool is_dropped(BlockPosition at) const noexcept { return state(at) == 0 && !is_free(at); }
  // InvalidArgument for an id that is out of range, stale (the slab is absent) or not in use.
  Status check_in_use(BlockId block) const noexcept;

  // ---- taking

  // Among the slabs that give blocks and have a free one, returns the slab with the smallest
  // count - used; kNoSlab without such a slab. Taking from it first keeps whole slabs empty.
  SlabId fullest() const noexcept;
  // Writes up to n free ids of that slab to `out`, with one reference each; returns how many.
  std::int32_t take_from(SlabId slab, std::int64_t n, BlockId* out) noexcept;
  // Adds a reference to a block in use, or the first one to a cached block.
  void add_reference(BlockPosition at) noexcept;

  // ---- giving

  // Drops one reference of each block. Changes nothing if an id is not in use (see check_in_use())
  // or is listed more often than it has references. After success, each slab of the blocks needs a
  // release().
  Status drop(std::span<const BlockId> blocks) noexcept;
  // Undoes a drop() before any release().
  void undo_drop(std::span<const BlockId> blocks) noexcept;
  // Releases blocks of one slab: a block without references becomes cached if keep(position)
  // returns true, else free.
  template <typename Keep>
  void release(SlabId slab, std::span<const BlockId> blocks, Keep keep) noexcept {
    std::int32_t dropped = 0;
    std::int32_t cached = 0;
    for (const BlockId block : blocks) {
      const BlockPosition at = find(block, slab);
      if (!is_dropped(at)) continue;
      ++dropped;
      if (keep(at)) {
        ++cached;
        set_cached(at);
      } else {
        set_free(at);
      }
    }
    if (dropped > 0) count_released(slab, dropped, cached);
  }

  // In use, with any number of references -> free.
  void free_used(BlockPosition at) noexcept;

  // ---- set aside

  // In use with one reference, as take_from() left it -> set aside.
  void set_aside(std::span<const BlockId> blocks) noexcept;
  // Set aside -> in use with `references`.
  void hand_out(BlockPosition at, std::int32_t references) noexcept;
  // Set aside -> free.
  void put_back(BlockPosition at) noexcept;

  // ---- cached

  // The slab whose cached blocks were used longest ago, or kNoSlab.
  SlabId oldest_cached() const noexcept { return queue_.front(); }
  SlabId cached_after(SlabId slab) const noexcept { return queue_.after(slab); }
  // Moves a slab in the queue to its end.
  void touch_cached(SlabId slab) noexcept { queue_.touch(slab); }
  // Cached -> free.
  void uncache(BlockPosition at) noexcept;
  // All cached blocks of a slab -> free; calls forget(position) for each.
  template <typename Forget>
  void evict(SlabId slab, Forget forget) noexcept {
    for (std::size_t word = 0; entry(slab).kept > 0 && word < words_per_slab_; ++word) {
      while (const std::uint64_t bits = words(cached_bits_, slab)[word]) {
        const BlockPosition at =
            place_in(slab, static_cast<std::int32_t>(word) * 64 + std::countr_zero(bits));
        forget(at);
        uncache(at);
      }
    }
  }

  // ---- pins

  // Adds a pin to a present slab. unpin() with an earlier generation returns false and changes
  // nothing.
  void pin(SlabId slab) noexcept { ++entry(slab).pins; }
  bool unpin(SlabId slab, std::uint32_t generation) noexcept;

  // Recounts everything.
  Status audit() const noexcept;

 private:
  // Values in references_ for a cached block, and for a block that is set aside. A free or dropped
  // block has the value 0.
  static constexpr std::int32_t kCached = -1;
  static constexpr std::int32_t kAside = -2;

  struct Entry {
    BlockRun run;
    std::int32_t used{0};
    std::int32_t kept{0};
    std::int32_t aside{0};  // used blocks that are set aside
    std::int32_t pins{0};
    std::uint32_t generation{0};
    SlabUse use{SlabUse::kAbsent};
    bool is_draining{false};
    // The neighbours in its bucket.
    SlabId next{kNoSlab};
    SlabId previous{kNoSlab};
    // Index of the first word of free bits that may be nonzero.
    std::int32_t first_word{0};

    std::int32_t index_of(BlockId block) const noexcept { return block - run.first; }
    bool has(BlockId block) const noexcept {
      return block >= run.first && index_of(block) < run.count;
    }
    std::int32_t free() const noexcept { return run.count - used - kept; }
    std::size_t bucket() const noexcept { return static_cast<std::size_t>(run.count - used); }
    bool gives() const noexcept { return use == SlabUse::kOpen && !is_draining; }
  };
  using Words = std::vector<std::uint64_t>;

  Entry& entry(SlabId slab) noexcept { return entries_[static_cast<std::size_t>(slab)]; }
  const Entry& entry(SlabId slab) const noexcept {
    return entries_[static_cast<std::size_t>(slab)];
  }
  std::uint64_t* words(Words& all, SlabId slab) const noexcept {
    return &all[static_cast<std::size_t>(slab) * words_per_slab_];
  }
  const std::uint64_t* words(const Words& all, SlabId slab) const noexcept {
    return &all[static_cast<std::size_t>(slab) * words_per_slab_];
  }
  std::int32_t& state(BlockPosition at) noexcept { return references_[at.slot]; }
  std::int32_t state(BlockPosition at) const noexcept { return references_[at.slot]; }
  bool is_free(BlockPosition at) const noexcept {
    return (words(free_bits_, at.slab)[at.index / 64] >> (at.index % 64) & 1) != 0;
  }
  Status why_not_in_use(BlockId block) const noexcept;
  void reset(SlabId slab) noexcept;
  void link(SlabId slab) noexcept;
  void unlink(SlabId slab) noexcept;
  void take_bits(SlabId slab, std::int32_t n, BlockId* out) noexcept;
  void set_free(BlockPosition at) noexcept;
  void set_cached(BlockPosition at) noexcept;
  void clear_cached(BlockPosition at) noexcept;
  void count_released(SlabId slab, std::int32_t dropped, std::int32_t cached) noexcept;
  void count_used(Entry& at, std::int32_t more) noexcept;
  Status audit_slab(SlabId slab) const noexcept;

  BlockGrid grid_;
  std::uint32_t blocks_per_slab_{0};  // number of blocks in the slab that has the most
  std::size_t words_per_slab_{0};
  std::vector<Entry> entries_;
  Words free_bits_;
  Words cached_bits_;
  std::vector<std::int32_t> references_;  // by slot
  std::vector<SlabId> buckets_;           // by count - used: first slab of a list
  BitSet filled_buckets_;
  SlabQueue queue_;
  std::int64_t free_{0};
  std::int64_t cached_{0};
  std::int64_t used_{0};
  std::int64_t capacity_{0};
};

}  // namespace rose::memory
