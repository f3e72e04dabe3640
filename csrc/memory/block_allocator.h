// The blocks of one partition: references, cached prefixes, tickets, pins and evacuations.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "memory/bit_set.h"
#include "memory/block_map.h"
#include "memory/prefix_cache.h"
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

class BlockAllocator;

// Slabs of the same tenant that another group of layers has no use for.
class SlabSource {
 public:
  // How many slabs that `group` has not could be its own at once.
  virtual std::int64_t spare_beside(const BlockAllocator& group) const noexcept = 0;
  // One of them becomes its own; false when there is none.
  virtual bool move_spare_to(BlockAllocator& group) noexcept = 0;

 protected:
  ~SlabSource() = default;
};

// Block from[i] is to be copied to to[i].
struct Evacuation {
  std::vector<BlockId> from;
  std::vector<BlockId> to;
};

// The life of a block:
//   alloc()     one reference
//   share()     one more for each who uses the same data, also of a cached block
//   publish()   its data has a key, under which others find it
//   free()      one less; with the last one a block with a key stays cached, any other is free
// A cached block counts as free. When no other is left, slabs give up their cached blocks, the slab
// whose cached blocks were used longest ago first and all of its at once, so that whole slabs
// empty; those of namespaces that are not current go before all others. A slab that is being
// revoked loses its keys and its cached blocks at once.
//
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
// The life of an evacuation:
//   plan()      chooses blocks that move, so that slabs come empty, and sets their targets aside;
//               the slabs of the targets are pinned, for bytes will be written there
//   (the engine copies the bytes of each block in every layer, and writes none of them meanwhile)
//   finish()    references and keys move over, the sources are free; the engine rewrites its tables
//   cancel()    nothing has moved
//
// The arbiter is in this process and hears of idle slabs through a SlabWatcher, or it is in another
// one and the slabs are used through a SlabDoor. Then an idle slab may leave at any moment:
// whatever needs a slab that is not entered yet does without it when the door says that it has
// left.
//
// Thread rule: any thread; public methods take `books`, the mutex of the arbiter or of the tenant.
// A method that frees or unpins may, inside the call, hand a revoked slab over.
//
// Invariants:
//   1. With a door, a slab is entered exactly while it has a block in use or set aside, or a pin.
//   2. A block with a key is in use or cached, in an open slab; a cached block has a key.
//   3. The cached blocks of a slab are of one namespace.
class BlockAllocator final : public SlabHolder {
 public:
  BlockAllocator(const BlockGrid& grid, std::mutex& books, SlabWatcher& watcher) noexcept;
  BlockAllocator(const BlockGrid& grid, std::mutex& books, SlabDoor& door) noexcept;
  BlockAllocator(const BlockAllocator&) = delete;
  BlockAllocator& operator=(const BlockAllocator&) = delete;

  // ---- blocks

  // Writes n ids to `out`; false, and nothing taken, when fewer are free.
  bool alloc(std::span<BlockId> out) noexcept;
  // One reference less for all of `blocks`, or for none: InvalidArgument for an id that is out of
  // range, stale, free already, set aside, or named more often than it has references. Ids of a
  // quarantined slab count as evidence of its completion.
  Status free(std::span<const BlockId> blocks) noexcept;
  // One reference more for all of `blocks`, which are in use or cached, or for none.
  Status share(std::span<const BlockId> blocks) noexcept;
  // 0 for a block that is free, cached or set aside.
  Result<std::int32_t> references(BlockId block) const noexcept;

  // ---- prefix cache

  // Keys go into this namespace, and only its own are found, from here on. Takes time for each slab
  // with a cached block.
  void set_cache_namespace(std::string_view name) noexcept;
  // Blocks in use get keys; all of them or, on InvalidArgument, none. Where a key has a block
  // already, that one keeps it; a block in a slab that is being revoked gets none.
  Status publish(std::span<const BlockId> blocks, std::span<const BlockKey> keys) noexcept;
  // The blocks of the longest prefix of `keys` that is there. No references are taken.
  std::size_t lookup(std::span<const BlockKey> keys, std::span<BlockId> out) const noexcept;
  // As lookup() and share() of what was found.
  std::size_t acquire(std::span<const BlockKey> keys, std::span<BlockId> out) noexcept;
  // These blocks have no key any more, and the cached ones among them are free. InvalidArgument,
  // and no change, for an id that is out of range or stale.
  Status forget(std::span<const BlockId> blocks) noexcept;
  void forget_all() noexcept;

  // ---- tickets

  // Nothing when fewer than n are free.
  std::optional<TicketId> reserve(std::int64_t n) noexcept;
  // Writes out.size() ids to `out`; false, and nothing handed out, when fewer are left in it.
  Result<bool> commit(TicketId ticket, std::span<BlockId> out) noexcept;
  Status cancel(TicketId ticket) noexcept;

  // ---- pins

  // All of them or none; the blocks must be in use, the slabs must be ours.
  Result<PinId> pin_blocks(std::span<const BlockId> blocks) noexcept;
  Result<PinId> pin_slabs(std::span<const SlabId> slabs) noexcept;
  Status unpin(PinId pin) noexcept;
  // Those that are not over, also of slabs that were lost since.
  PinTotals pinned() const noexcept;

  // ---- evacuation

  // Empties `slabs`, in this order, each wholly or not at all; moves at most `limit` blocks. Passes
  // over slabs that are not ours, pinned, hold set-aside blocks, or do not fit elsewhere. Their
  // cached blocks are free at once, and they give no blocks until finish or cancel.
  Evacuation plan_evacuation(std::span<const SlabId> slabs, std::int64_t limit) noexcept;
  // As above for the slabs with the fewest blocks in use, as long as the others that are in use
  // have room.
  Evacuation plan_evacuation(std::int64_t limit) noexcept;
  // now_at[i] is where the data of from[i] is: to[i], or from[i] when it was freed meanwhile or the
  // slab of to[i] is being revoked. InvalidArgument, and no change, for a pair that is not planned.
  Status finish_evacuation(std::span<const BlockId> from, std::span<const BlockId> to,
                           std::span<BlockId> now_at) noexcept;
  Status cancel_evacuation(std::span<const BlockId> from, std::span<const BlockId> to) noexcept;

  // ---- numbers

  // Cached ones included, and what other groups of the tenant's model have no use for: alloc() can
  // have them.
  std::int64_t free_blocks() const noexcept;
  std::int64_t cached_blocks() const noexcept;
  std::int64_t used_blocks() const noexcept;
  std::int64_t capacity_blocks() const noexcept;
  // Slabs with a block in use or set aside, or a pin; takes time for each slab there is.
  std::int32_t slabs_in_use() const noexcept;
  // 0 for a slab that is not ours.
  std::int32_t used(SlabId slab) const noexcept;
  Result<std::uint32_t> generation(SlabId slab) const noexcept;
  const BlockGrid& grid() const noexcept { return map_.grid(); }

  // ---- with a door

  // The arbiter has granted us a slab. Once more at the same generation changes nothing;
  // InvalidArgument when there is no such slab or an earlier life of it is still in use.
  Status admit_slab(SlabId slab, std::uint32_t generation) noexcept;
  // Looks at every slab of ours: what is closed gives no new blocks from here on, what has left is
  // forgotten. Whatever takes blocks or pins does this by itself when the door has news.
  Status reconcile() noexcept;

 private:
  friend class SlabGroups;

  // For the arbiter alone, which holds the lock.
  void add_slab(SlabId slab, std::uint32_t generation) noexcept override {
    map_.add(slab, generation);
  }
  Status close_slab(SlabId slab) noexcept override;
  void quarantine_slab(SlabId slab) noexcept override;
  void remove_slab(SlabId slab) noexcept override;
  SlabLoad load(SlabId slab) const noexcept override {
    return map_.has_slab(slab) ? SlabLoad{map_.used(slab), map_.pins(slab)} : SlabLoad{};
  }
  PinTotals pin_totals() const noexcept override;
  BlockTotals totals() const noexcept override { return {available(), map_.used_blocks()}; }
  Status audit_slab(SlabId slab, SlabUse use, std::uint32_t generation) const noexcept override;
  Status audit() const noexcept override;

  struct PinnedSlab {
    SlabId slab;
    std::uint32_t generation;
  };
  struct Pin {
    Nanoseconds since_ns;
    std::vector<PinnedSlab> slabs;
  };
  // A planned copy, by the block it goes to.
  struct Move {
    BlockId from;
    std::uint32_t from_generation;
    std::uint32_t to_generation;
  };

  BlockAllocator(const BlockGrid& grid, std::mutex& books, SlabWatcher* watcher,
                 SlabDoor* door) noexcept;

  bool enter(SlabId slab) noexcept;
  Status settle_slab(SlabId slab) noexcept;
  Status hear_news() noexcept;
  Status reconcile_slabs() noexcept;

  // What the slabs hold that another group could leave to this one at once.
  std::int64_t spare_beside() const noexcept {
    return source_ == nullptr ? 0 : source_->spare_beside(*this) * map_.fewest_blocks();
  }
  std::int64_t available() const noexcept { return map_.free_blocks() + spare_beside(); }
  bool make_free() noexcept;
  // All n or none.
  bool take(std::int64_t n, BlockId* out) noexcept;
  // Wherever free blocks came into use: whoever watches this tenant's supply looks at it.
  void tell_taken() noexcept {
    if (watcher_ != nullptr) watcher_->on_blocks_taken(*this);
  }
  Status give(std::span<const BlockId> blocks) noexcept;
  Status release(std::span<const BlockId> blocks) noexcept;
  Status put_back(std::span<const BlockId> blocks) noexcept;
  Result<PinId> keep_pin(std::vector<PinnedSlab> slabs) noexcept;
  Status drop_pins(std::span<const PinnedSlab> slabs) noexcept;

  void add_reference(Place at) noexcept;
  bool stays_cached(Place at) noexcept;
  bool has_key(Place at) const noexcept { return cache_.namespace_of(at.slot) != 0; }
  void erase_key(Place at) noexcept;
  void drop_cached(SlabId slab) noexcept;
  void forget_keys(SlabId slab) noexcept;
  std::int32_t& keys_in(SlabId slab) noexcept { return keys_[static_cast<std::size_t>(slab)]; }

  bool can_empty(SlabId slab) const noexcept;
  void clear_out(SlabId slab, std::span<const BlockId> targets, Evacuation& plan) noexcept;
  Status check_planned(std::span<const BlockId> from, std::span<const BlockId> to) const noexcept;
  Status end_move(BlockId to, BlockId* now_at) noexcept;
  bool carry_over(const Move& move, BlockId to) noexcept;

  Status audit_keys(SlabId slab) const noexcept;
  Status audit_aside() const noexcept;
  Status audit_pins() const noexcept;

  std::mutex& books_;  // guards all of the below
  SlabWatcher* const watcher_;
  SlabDoor* const door_;         // exactly one of the two is there
  SlabSource* source_{nullptr};  // where the tenant's model has other groups
  BlockMap map_;
  BitSet entered_;  // the slabs that we are through the door of
  PrefixCache cache_;
  std::vector<std::int32_t> keys_;                // by slab: blocks with a key
  std::vector<std::uint32_t> cached_namespaces_;  // by slab: of its cached blocks, if it has any
  std::unordered_map<TicketId, std::vector<BlockId>> tickets_;
  std::map<PinId, Pin> pins_;  // the oldest first
  std::unordered_map<BlockId, Move> moves_;
  std::vector<std::int32_t> moves_out_of_;  // by slab; it gives no blocks until the last is over
  std::uint64_t next_id_{1};
};

}  // namespace rose::memory
