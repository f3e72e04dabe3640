// The blocks of one partition: allocation, set-aside tickets and the pins of running steps.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "memory/block_map.h"
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
// Thread rule: any thread; public methods take the arbiter's mutex. A method that frees or unpins
// may, inside the call, hand a revoked slab over.
class BlockAllocator final : public SlabHolder {
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
  // For the arbiter alone, which holds the lock.
  void add_slab(SlabId slab, std::uint32_t generation) noexcept override {
    map_.add(slab, generation);
  }
  Status close_slab(SlabId slab) noexcept override;
  void quarantine_slab(SlabId slab) noexcept override { map_.quarantine(slab); }
  void remove_slab(SlabId slab) noexcept override { map_.remove(slab); }
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

  Status give(std::span<const BlockId> blocks) noexcept;
  Status report_if_idle(SlabId slab) noexcept;
  PinId keep_pin(std::vector<PinnedSlab> slabs) noexcept;

  std::mutex& books_;  // guards all of the below; it is the arbiter's
  SlabWatcher& watcher_;
  BlockMap map_;
  std::unordered_map<TicketId, std::vector<BlockId>> tickets_;
  std::unordered_map<PinId, std::vector<PinnedSlab>> pins_;
  std::uint64_t next_id_{1};
};

}  // namespace rose::memory
