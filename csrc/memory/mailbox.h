// The words shared by an arbiter and a tenant of another process: the current use of each slab.
//
//   ABSENT   the tenant does not have the slab
//   IDLE     the tenant has the slab but uses no block: the arbiter may take it without asking
//   BUSY     the tenant has a block in use or a pin there
//   CLOSED   the tenant has a block in use or a pin there, and must leave the slab
//
//   arbiter   any    -> IDLE     granted: an unowned slab, so nobody else writes this word
//             IDLE   -> ABSENT   taken back at once
//             BUSY   -> CLOSED   revoked
//             any    -> ABSENT   the tenant is proven gone, or its work proven complete
//   tenant    IDLE   -> BUSY     enters
//             BUSY   -> IDLE     leaves
//             CLOSED -> ABSENT   leaves for good, and rings
//             IDLE   -> ABSENT   returns the slab, and rings
//
// The moves from any state are plain stores of the arbiter. Every other move is one
// compare-and-swap of generation and use together, so a process that acts late, with an old
// generation, changes nothing. The state is in the words alone: either process can die after any
// single move, and the other continues from the words.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "base/memfd.h"
#include "base/status.h"
#include "memory/partition.h"
#include "memory/shape.h"
#include "memory/slab_holder.h"

namespace rose::memory {

enum class WordUse : std::uint32_t { kAbsent = 0, kIdle, kBusy, kClosed };

// The fields of one word. `use` may hold any number, because the other process can write garbage.
struct SlabWord {
  std::uint32_t generation{0};
  WordUse use{WordUse::kAbsent};

  bool operator==(const SlabWord&) const = default;
};

// The result of leaving a slab.
enum class Leaving {
  kStays,     // the slab is still the tenant's
  kHome,      // the slab was closed, and this call returned it
  kWasTaken,  // the slab was no longer the tenant's
};

// A tenant's report about itself. The arbiter does not trust the report.
struct TenantReport {
  Nanoseconds heartbeat_ns{0};  // CLOCK_BOOTTIME; 0 before the first
  std::uint64_t progress{0};
  std::int64_t free_blocks{0};
  std::int64_t used_blocks{0};
  std::int64_t cached_blocks{0};
  PinTotals pins;
};

// The layout in the memfd, version 2: a header, then one record per lendable slab.
struct MailboxHeaderWire {
  std::uint64_t magic;
  std::uint32_t version;
  std::int32_t slab_count;
  std::uint64_t slab_bytes;
  std::int32_t header_slabs;
  std::int32_t partition;
  std::uint64_t pool;  // the same as in the ledger
  // Advances when the arbiter has closed, taken or granted slabs; the tenant then checks its slabs.
  std::atomic<std::uint64_t> news;
  std::atomic<std::int64_t> heartbeat_ns;
  std::atomic<std::uint64_t> progress;
  std::atomic<std::int64_t> free_blocks;
  std::atomic<std::int64_t> used_blocks;
  std::atomic<std::int64_t> cached_blocks;
  std::atomic<std::int64_t> pins;
  std::atomic<std::int64_t> oldest_pin_ns;
  std::uint64_t padding[3];
};
struct SlabWordWire {
  std::atomic<std::uint64_t> word;  // generation << 32 | use
  std::atomic<std::uint32_t> used;  // blocks in use, from the tenant's last report
  std::atomic<std::uint32_t> rank;  // the tenant's hint: the smallest is revoked first
};
static_assert(sizeof(MailboxHeaderWire) == 128 && sizeof(SlabWordWire) == 16);

// One mapping of a mailbox; the arbiter and the tenant have one each.
//
// Thread rule: any thread and any process. The arbiter changes words under its own mutex, and the
// tenant under the mutex of its allocator.
class Mailbox {
 public:
  // Creates a mailbox of zeros with a sealed size: every word is ABSENT.
  static Result<Mailbox> create(PoolShape shape, PartitionId partition,
                                std::uint64_t pool) noexcept;
  // Corrupt if `fd` is not a mailbox of this version for a pool of `shape`, or if its size could
  // still change under the mapping.
  static Result<Mailbox> open(const FileDescriptor& fd, PoolShape shape) noexcept;

  PartitionId partition() const noexcept { return header().partition; }
  std::uint64_t pool() const noexcept { return header().pool; }
  int fd() const noexcept { return fd_.get(); }

  SlabWord word(SlabId slab) const noexcept;

  // ---- the arbiter's moves

  void grant(SlabId slab, std::uint32_t generation) const noexcept;
  // IDLE -> ABSENT; false, with nothing changed, from any other state.
  bool take_idle(SlabId slab, std::uint32_t generation) const noexcept;
  // IDLE -> ABSENT, or BUSY -> CLOSED. An invalid word stays unchanged and counts as busy.
  void close(SlabId slab, std::uint32_t generation) const noexcept;
  void clear(SlabId slab, std::uint32_t generation) const noexcept;
  void tell_news() const noexcept { header().news.fetch_add(1); }

  // ---- the tenant's moves

  std::uint64_t news() const noexcept { return header().news.load(); }
  bool enter(SlabId slab, std::uint32_t generation) const noexcept;
  Leaving leave(SlabId slab, std::uint32_t generation) const noexcept;
  bool give(SlabId slab, std::uint32_t generation) const noexcept;

  // ---- reports and hints

  void report(const TenantReport& report) const noexcept;
  TenantReport report() const noexcept;
  void set_used(SlabId slab, std::uint32_t used) const noexcept { at(slab).used.store(used); }
  void set_rank(SlabId slab, std::uint32_t rank) const noexcept { at(slab).rank.store(rank); }
  std::uint32_t used(SlabId slab) const noexcept { return at(slab).used.load(); }
  std::uint32_t rank(SlabId slab) const noexcept { return at(slab).rank.load(); }

 private:
  Mailbox(FileDescriptor fd, Mapping mapping) noexcept
      : fd_{std::move(fd)}, mapping_{std::move(mapping)} {}
  MailboxHeaderWire& header() const noexcept;
  SlabWordWire& at(SlabId slab) const noexcept;
  bool swap(SlabId slab, std::uint32_t generation, WordUse from, WordUse to) const noexcept;

  FileDescriptor fd_;
  Mapping mapping_;
};

}  // namespace rose::memory
