// The blocks of one partition: allocation, set-aside tickets and the pins of running steps.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "memory/bit_set.h"
#include "memory/block_map.h"
#include "memory/slab_door.h"
#include "memory/slab_holder.h"

namespace rose::memory {

using TicketId = std::uint64_t;
using PinId = std::uint64_t;

// Hears, under the lock, that a slab which gives no new blocks has none in use and no pin left, and
// that blocks were taken.
class SlabWatcher {
 public:
  virtual Status on_slab_idle(SlabId slab) noexcept = 0;
  virtual void on_blocks_taken(const SlabHolder& taker) noexcept { static_cast<void>(taker); }

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
// The arbiter is in this process and hears of idle slabs through a SlabWatcher, or it is in another
// one and the slabs are used through a SlabDoor. Then an idle slab may leave at any moment:
// whatever needs a slab that is not entered yet does without it when the door says that it has
// left.
//
// Thread rule: any thread; public methods take `books`, the mutex of the arbiter or of the tenant.
// A method that frees or unpins may, inside the call, hand a revoked slab over.
class BlockAllocator final : public SlabHolder {
 public:
  BlockAllocator(const BlockGrid& grid, std::mutex& books, SlabWatcher& watcher) noexcept;
  BlockAllocator(const BlockGrid& grid, std::mutex& books, SlabDoor& door) noexcept;
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

  // ---- with a door

  // The arbiter has granted us a slab. Once more at the same generation changes nothing;
  // InvalidArgument when there is no such slab or an earlier life of it is still in use.
  Status admit_slab(SlabId slab, std::uint32_t generation) noexcept;
  // Looks at every slab of ours: what is closed gives no new blocks from here on, what has left is
  // forgotten. alloc(), reserve() and the pins do this by themselves when the door has news.
  Status reconcile() noexcept;

 private:
  // For the arbiter alone, which holds the lock.
  void add_slab(SlabId slab, std::uint32_t generation) noexcept override {
    map_.add(slab, generation);
  }
  Status close_slab(SlabId slab) noexcept override;
  void quarantine_slab(SlabId slab) noexcept override { map_.quarantine(slab); }
  void remove_slab(SlabId slab) noexcept override {
    entered_.clear(static_cast<std::size_t>(slab));
    map_.remove(slab);
  }
  SlabLoad load(SlabId slab) const noexcept override {
    return map_.has_slab(slab) ? SlabLoad{map_.used(slab), map_.pins(slab)} : SlabLoad{};
  }
  BlockTotals totals() const noexcept override { return {map_.free_blocks(), map_.used_blocks()}; }
  Status audit_slab(SlabId slab, SlabUse use, std::uint32_t generation) const noexcept override;
  Status audit() const noexcept override;

  struct PinnedSlab {
    SlabId slab;
    std::uint32_t generation;
  };

  // All n or none.
  bool take(std::int64_t n, BlockId* out) noexcept;
  bool enter(SlabId slab) noexcept;
  Status settle(SlabId slab) noexcept;
  Status hear_news() noexcept;
  Status reconcile_slabs() noexcept;
  Status give(std::span<const BlockId> blocks) noexcept;
  Result<PinId> keep_pin(std::vector<PinnedSlab> slabs) noexcept;
  Status drop_pins(std::span<const PinnedSlab> slabs) noexcept;

  std::mutex& books_;  // guards all of the below
  SlabWatcher* const watcher_{nullptr};
  SlabDoor* const door_{nullptr};  // exactly one of the two is there
  BlockMap map_;
  BitSet entered_;  // slabs that we are through the door of: those that are not idle
  std::unordered_map<TicketId, std::vector<BlockId>> tickets_;
  std::unordered_map<PinId, std::vector<PinnedSlab>> pins_;
  std::uint64_t next_id_{1};
};

}  // namespace rose::memory
