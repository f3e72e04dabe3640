// The blocks of one partition: allocation, set-aside tickets and the pins of running steps.
#pragma once

#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "memory/block_map.h"

namespace rose::memory {

using TicketId = std::uint64_t;
using PinId = std::uint64_t;

// Hears, under the lock, that a slab which gives no new blocks has none in use and no pin left, and
// that fewer blocks are free than the low-water mark says.
class SlabWatcher {
 public:
  virtual Status on_slab_idle(SlabId slab) noexcept = 0;
  virtual void on_low_water() noexcept {}

 protected:
  ~SlabWatcher() = default;
};

// The life of a ticket:
//   reserve(n)  sets n blocks aside: nobody else can have them, and they count as used
//   commit(k)   hands k of them out; the ticket is over with its last block
//   cancel()    gives the rest back; the ticket is over
// A slab that is being revoked takes its blocks out of every ticket: no data is in them yet, and a
// revocation waits for pins and blocks in use and for nothing else.
//
// A pin holds whole slabs for a step, from its preparation to its completion: a pinned slab never
// changes owner, even when all its blocks were freed.
//
// Thread rule: any thread; public methods take the arbiter's mutex. A method that frees or unpins
// may, inside the call, hand a revoked slab over.
class BlockAllocator {
 public:
  BlockAllocator(const BlockGrid& grid, std::mutex& books, SlabWatcher& watcher) noexcept;
  BlockAllocator(const BlockAllocator&) = delete;
  BlockAllocator& operator=(const BlockAllocator&) = delete;

  // Writes n ids to `out`; false, and nothing taken, when fewer are free.
  bool alloc(std::span<BlockId> out) noexcept;
  // Takes all of `blocks` back, or none: InvalidArgument for an id that is out of range, stale,
  // free already or given twice. Ids of a quarantined slab count as evidence of its completion.
  Status free(std::span<const BlockId> blocks) noexcept;
  // As free() of one block that was allocated when its slab had `generation`.
  Status free_checked(BlockId block, std::uint32_t generation) noexcept;

  // Nothing when fewer than n are free.
  std::optional<TicketId> reserve(std::int64_t n) noexcept;
  // Writes out.size() ids to `out`; false, and nothing handed out, when fewer are left in it.
  Result<bool> commit(TicketId ticket, std::span<BlockId> out) noexcept;
  Status cancel(TicketId ticket) noexcept;

  // All of them or none; the blocks must be in use, the slabs must be ours.
  Result<PinId> pin_blocks(std::span<const BlockId> blocks) noexcept;
  Result<PinId> pin_slabs(std::span<const SlabId> slabs) noexcept;
  Status unpin(PinId pin) noexcept;

  std::int64_t free_blocks() const noexcept;
  std::int64_t used_blocks() const noexcept;
  std::int64_t capacity_blocks() const noexcept;
  // 0 for a slab that is not ours.
  std::int32_t used(SlabId slab) const noexcept;
  Result<std::uint32_t> generation(SlabId slab) const noexcept;
  const BlockGrid& grid() const noexcept { return map_.grid(); }

 private:
  // The arbiter opens and closes slabs, and counts, while it holds the lock itself.
  friend class Arbiter;
  const BlockMap& map() const noexcept { return map_; }
  void add_slab(SlabId slab, std::uint32_t generation) noexcept { map_.add(slab, generation); }
  void set_low_water(std::int64_t free_blocks) noexcept { low_water_ = free_blocks; }
  Status close_slab(SlabId slab) noexcept;
  void quarantine_slab(SlabId slab) noexcept { map_.quarantine(slab); }
  void remove_slab(SlabId slab) noexcept { map_.remove(slab); }
  Status audit() const noexcept;

  struct PinnedSlab {
    SlabId slab;
    std::uint32_t generation;
  };

  // Called wherever blocks were taken.
  void look_at_level() noexcept {
    if (map_.free_blocks() < low_water_) watcher_.on_low_water();
  }
  Status give(std::span<const BlockId> blocks) noexcept;
  Status report_if_idle(SlabId slab) noexcept;
  PinId keep_pin(std::vector<PinnedSlab> slabs) noexcept;

  std::mutex& books_;  // guards all of the below; it is the arbiter's
  SlabWatcher& watcher_;
  BlockMap map_;
  std::int64_t low_water_{std::numeric_limits<std::int64_t>::min()};
  std::unordered_map<TicketId, std::vector<BlockId>> tickets_;
  std::unordered_map<PinId, std::vector<PinnedSlab>> pins_;
  std::uint64_t next_id_{1};
};

}  // namespace rose::memory
