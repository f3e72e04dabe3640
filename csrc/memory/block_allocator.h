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

// Notified, under the lock, when a closed slab becomes idle, and when blocks were taken.
class SlabWatcher {
 public:
  virtual Status on_slab_idle(SlabId slab) noexcept = 0;
  virtual void on_blocks_taken(const SlabHolder& taker) noexcept { static_cast<void>(taker); }

 protected:
  ~SlabWatcher() = default;
};

// Block from[i] must be copied to to[i].
struct Evacuation {
  std::vector<BlockId> from;
  std::vector<BlockId> to;
};

// The life of a block:
//   alloc()     gives the block one reference
//   share()     adds a reference for a further user of the same data; the block may be cached
//   publish()   gives its data a key, under which others find it
//   free()      drops a reference; after the last, a block with a key is cached, any other is free
// A cached block counts as free. When no other free block is left, one slab loses all its cached
// blocks at once, so that whole slabs become empty. Slabs of namespaces that are not current come
// first, then slabs whose cached blocks were used longest ago. A slab that is being revoked loses
// its keys and its cached blocks at once.
//
// The life of a ticket:
//   reserve(n)  sets n blocks aside: nobody else can get them, and they count as used
//   commit(k)   allocates k of them; the ticket ends with its last block
//   cancel()    returns the rest; the ticket ends
// The revocation of a slab takes its blocks out of every ticket: they hold no data yet, and a
// revocation waits only for pins and blocks in use.
//
// A pin holds whole slabs for a step, from its preparation to its completion: a pinned slab never
// changes owner, even after all its blocks were freed.
//
// The life of an evacuation:
//   plan()      chooses blocks to move, so that slabs become empty, and sets their targets aside;
//               the slabs of the targets are pinned, because bytes will be written there
//   (the engine copies each block in every layer, and does not write to these blocks meanwhile)
//   finish()    moves references and keys and frees the sources; the engine rewrites its tables
//   cancel()    nothing has moved
//
// The arbiter may be in this process; then a SlabWatcher reports idle slabs to it. Or it is in
// another process; then slabs are used through a SlabDoor, and the arbiter may take an idle slab at
// any moment. A call that finds a slab gone continues without it. give_up() returns a closed slab
// that has blocks in use: their data is lost, they can only be freed, and they cannot be pinned.
//
// Thread rule: any thread; public methods take `books`, the mutex of the arbiter or of the tenant.
// A method that frees or unpins may return a revoked slab within the call.
//
// Invariants:
//   1. With a door, a slab is entered exactly while it has a block in use or set aside, or a pin,
//      and was not given up.
//   2. A block with a key is in use or cached, in an open slab; a cached block has a key.
//   3. The cached blocks of a slab are of one namespace.
class BlockAllocator final : public SlabHolder {
 public:
  BlockAllocator(const BlockGrid& grid, std::mutex& books, SlabWatcher& watcher) noexcept;
  BlockAllocator(const BlockGrid& grid, std::mutex& books, SlabDoor& door) noexcept;
  BlockAllocator(const BlockAllocator&) = delete;
  BlockAllocator& operator=(const BlockAllocator&) = delete;

  // ---- blocks

  // Writes n ids to `out`; false, with nothing taken, if fewer are free.
  bool alloc(std::span<BlockId> out) noexcept;
  // Drops one reference of all `blocks`, or of none: InvalidArgument for an id that is out of
  // range, stale, already free, set aside, or listed more often than it has references. Freeing all
  // blocks of a quarantined slab proves that its tenant has finished with it.
  Status free(std::span<const BlockId> blocks) noexcept;
  // Adds one reference to all `blocks`, which must be in use or cached, or to none.
  Status share(std::span<const BlockId> blocks) noexcept;
  // Returns the number of references; 0 for a block that is free, cached or set aside.
  Result<std::int32_t> references(BlockId block) const noexcept;

  // ---- prefix cache

  // Makes this the namespace for new keys and lookups. Takes time linear in the number of slabs
  // with a cached block.
  void set_cache_namespace(std::string_view name) noexcept;
  // Gives keys to blocks in use: to all of them or, on InvalidArgument, to none. A key that already
  // names another block keeps naming that block. A block in a slab that is being revoked gets no
  // key.
  Status publish(std::span<const BlockId> blocks, std::span<const BlockKey> keys) noexcept;
  // Finds the blocks of the longest known prefix of `keys`, writes their ids to `out` and returns
  // their number. Takes no references.
  std::size_t lookup(std::span<const BlockKey> keys, std::span<BlockId> out) const noexcept;
  // As lookup(), then share() of the result.
  std::size_t acquire(std::span<const BlockKey> keys, std::span<BlockId> out) noexcept;
  // Removes the keys of these blocks and frees those that are cached. InvalidArgument, with no
  // change, for an id that is out of range or stale.
  Status forget(std::span<const BlockId> blocks) noexcept;
  void forget_all() noexcept;

  // ---- tickets

  // Sets n blocks aside, or returns nothing if fewer than n are free.
  std::optional<TicketId> reserve(std::int64_t n) noexcept;
  // Writes out.size() ids to `out`; false, with nothing allocated, if the ticket has fewer.
  Result<bool> commit(TicketId ticket, std::span<BlockId> out) noexcept;
  Status cancel(TicketId ticket) noexcept;

  // ---- pins

  // Pins all of the slabs or none. The blocks must be in use, and the slabs must be the tenant's.
  // Unavailable if one of the slabs was given up.
  Result<PinId> pin_blocks(std::span<const BlockId> blocks) noexcept;
  Result<PinId> pin_slabs(std::span<const SlabId> slabs) noexcept;
  Status unpin(PinId pin) noexcept;
  // Pins that have not ended, including those of lost slabs.
  PinTotals pinned() const noexcept;

  // ---- evacuation

  // Plans to empty `slabs`, in this order, each wholly or not at all, by moving at most `limit`
  // blocks. Skips a slab if it is not the tenant's, is pinned, has blocks set aside, or has more
  // blocks than other slabs have room for. The cached blocks of the chosen slabs are freed at once,
  // and these slabs give no blocks until their moves are finished or cancelled.
  Evacuation plan_evacuation(std::span<const SlabId> slabs, std::int64_t limit) noexcept;
  // Does the same for the slabs with the fewest blocks in use, as long as the other slabs in use
  // have room.
  Evacuation plan_evacuation(std::int64_t limit) noexcept;
  // Ends the planned moves of from[i] to to[i]. Sets now_at[i] to the block that has the data now:
  // to[i], or still from[i] if that block was freed meanwhile or the slab of to[i] is being
  // revoked. InvalidArgument, with no change, for a move that is not planned.
  Status finish_evacuation(std::span<const BlockId> from, std::span<const BlockId> to,
                           std::span<BlockId> now_at) noexcept;
  Status cancel_evacuation(std::span<const BlockId> from, std::span<const BlockId> to) noexcept;

  // ---- numbers

  // Includes cached blocks, since alloc() can get them, and no blocks of revoked slabs.
  std::int64_t free_blocks() noexcept;
  std::int64_t cached_blocks() const noexcept;
  std::int64_t used_blocks() const noexcept;
  std::int64_t capacity_blocks() const noexcept;
  // Number of slabs with a pin, or with a block in use or set aside. Takes time linear in the
  // number of slabs.
  std::int32_t slabs_in_use() const noexcept;
  // Number of blocks of the slab in use or set aside; 0 for a slab that is not the tenant's.
  std::int32_t used(SlabId slab) const noexcept;
  Result<std::uint32_t> generation(SlabId slab) const noexcept;
  const BlockGrid& grid() const noexcept { return map_.grid(); }

  // ---- with a door

  // Adds a slab that the arbiter has granted. A second call with the same generation changes
  // nothing. InvalidArgument if there is no such slab or an earlier generation of it is still in
  // use.
  Status admit_slab(SlabId slab, std::uint32_t generation) noexcept;
  // Checks all slabs: a closed one gives no new blocks from now on, and a lost one is forgotten.
  // Calls that take blocks or pins do this by themselves when the door has news.
  Status reconcile() noexcept;
  // Leaves a closed slab although blocks are in use there. False if the slab is not closed, or a
  // pin or a planned move holds it. The caller holds the lock.
  bool give_up(SlabId slab) noexcept;
  // True until the last block of a slab that was given up is freed. The caller holds the lock.
  bool has_given_up(SlabId slab) const noexcept {
    return door_ != nullptr && map_.use(slab) == SlabUse::kQuarantined;
  }

 private:
  friend class Attachment;

  // For the arbiter alone, under the lock.
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
  BlockTotals totals() const noexcept override { return {map_.free_blocks(), map_.used_blocks()}; }
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
  // A planned copy, keyed by its target.
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

  bool make_free() noexcept;
  // All n or none.
  bool take(std::int64_t n, BlockId* out) noexcept;
  // Called after free blocks were taken. The watcher then checks whether its watched tenant is
  // short.
  void tell_taken() noexcept {
    if (watcher_ != nullptr) watcher_->on_blocks_taken(*this);
  }
  Status give(std::span<const BlockId> blocks) noexcept;
  Status release(std::span<const BlockId> blocks) noexcept;
  Status put_back(std::span<const BlockId> blocks) noexcept;
  Result<PinId> keep_pin(std::vector<PinnedSlab> slabs) noexcept;
  Status drop_pins(std::span<const PinnedSlab> slabs) noexcept;

  void add_reference(BlockPosition at) noexcept;
  bool stays_cached(BlockPosition at) noexcept;
  bool has_key(BlockPosition at) const noexcept { return cache_.namespace_of(at.slot) != 0; }
  void erase_key(BlockPosition at) noexcept;
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

  std::mutex& books_;  // guards all members below
  SlabWatcher* const watcher_;
  SlabDoor* const door_;  // exactly one of watcher_ and door_ is set
  BlockMap map_;
  BitSet entered_;  // slabs entered through the door
  PrefixCache cache_;
  std::vector<std::int32_t> keys_;                // by slab: number of blocks with a key
  std::vector<std::uint32_t> cached_namespaces_;  // by slab: namespace of its cached blocks, if any
  std::unordered_map<TicketId, std::vector<BlockId>> tickets_;
  std::map<PinId, Pin> pins_;  // oldest first
  std::unordered_map<BlockId, Move> moves_;
  std::vector<std::int32_t>
      moves_out_of_;  // by slab: number of open moves; until it is 0, the slab gives no blocks
  std::uint64_t next_id_{1};
};

}  // namespace rose::memory
