// Who owns which slab, in shared memory that everybody may read and the arbiter alone can write.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/memfd.h"
#include "base/status.h"
#include "memory/partition.h"
#include "memory/shape.h"
#include "memory/slab_holder.h"
#include "memory/slab_state.h"

namespace rose::memory {

// One slab as the ledger shows it.
//   owner: the partition that holds it; for a quarantined slab the one whose completion is awaited;
//          -1 when unowned.
//   lease_epoch, lease_id: of the lease it is lent under; 0 when it is not lent.
//   generation: moves on each time the slab comes back; catches ids from before.
struct SlabRecord {
  std::int32_t owner{-1};
  SlabState state{SlabState::kUnowned};
  std::uint64_t lease_epoch{0};
  std::uint32_t generation{0};
  std::uint64_t lease_id{0};

  bool operator==(const SlabRecord&) const = default;
};

// A revocation as the ledger shows it, in slabs. `id` is 0 when there was none.
struct RevocationNote {
  std::uint64_t id{0};
  std::int32_t wanted{0};
  std::int32_t pending{0};
  Nanoseconds deadline_ns{0};  // on the arbiter's clock
  // The earliest deadline of all from the same partition that are under way; 0 when none is.
  Nanoseconds due_ns{0};
};

// One partition as the ledger shows it; `partition.id` is kNobody where there is none.
//   leases: how many have a slab left.
//   free_blocks, used_blocks, pins: as they were when the arbiter looked last: at the last change
//   of
//                                   ownership or expire(). In between they come and go without a
//                                   word in the ledger.
//   revocation: the newest from this partition.
struct PartitionRecord {
  Partition partition;
  std::int32_t leases{0};
  std::int64_t free_blocks{0};
  std::int64_t used_blocks{0};
  PinTotals pins;
  RevocationNote revocation;
};

struct LedgerCounts {
  std::uint32_t free{0};
  std::uint32_t owned{0};
  std::uint32_t quarantined{0};
};

// The layout in the memfd, version 3: a header, the partitions, then one record per lendable slab.
// A writer makes `sequence` odd, changes what it must, and makes it even again; a reader that saw
// the same even number before and after has seen one moment.
inline constexpr std::size_t kPartitionsMax = 8;
inline constexpr std::size_t kNameBytes = 24;  // longer names are cut

struct LedgerHeaderWire {
  std::uint64_t magic;
  std::uint32_t version;
  std::int32_t slab_count;
  std::uint64_t slab_bytes;
  std::int32_t header_slabs;
  std::atomic<std::uint32_t> sequence;
  std::atomic<std::uint64_t> epoch;
  std::atomic<std::uint32_t> free;
  std::atomic<std::uint32_t> owned;
  std::atomic<std::uint32_t> quarantined;
  std::uint32_t padding;
  std::atomic<std::int64_t> changed_ns;
  // Names the pool: the inode of its ledger.
  std::uint64_t pool;
};
struct PartitionRecordWire {
  std::atomic<std::int32_t> id;
  std::atomic<std::uint32_t> is_live;
  std::atomic<std::uint64_t> name[kNameBytes / 8];
  std::atomic<std::int32_t> reserve_slabs;
  std::atomic<std::int32_t> limit_slabs;
  std::atomic<std::int32_t> held;
  std::atomic<std::int32_t> quarantined;
  std::atomic<std::int32_t> leases;
  std::uint32_t padding;
  std::atomic<std::int64_t> free_blocks;
  std::atomic<std::int64_t> used_blocks;
  std::atomic<std::int64_t> pins;
  std::atomic<std::int64_t> oldest_pin_ns;
  std::atomic<std::uint64_t> revocation;
  std::atomic<std::int32_t> wanted;
  std::atomic<std::int32_t> pending;
  std::atomic<std::int64_t> deadline_ns;
  std::atomic<std::int64_t> due_ns;
};
struct SlabRecordWire {
  std::atomic<std::int32_t> owner;
  std::atomic<std::uint32_t> state;
  std::atomic<std::uint64_t> lease_epoch;
  std::atomic<std::uint32_t> generation;
  std::uint32_t padding;
  std::atomic<std::uint64_t> lease_id;
};
static_assert(sizeof(LedgerHeaderWire) == 72 && sizeof(PartitionRecordWire) == 120 &&
              sizeof(SlabRecordWire) == 32);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// What one change of the books shows.
struct LedgerChange {
  const std::vector<SlabRecord>& slabs;
  const std::vector<SlabId>& changed;  // those of `slabs` that are written
  LedgerCounts counts;
  std::uint64_t epoch{0};
  std::span<const PartitionRecord> partitions;  // all there are, at most kPartitionsMax
  Nanoseconds now_ns{0};
};

// The writing side. Thread rule: the caller's lock.
//
// Invariants:
//   1. The one writable mapping is made before the memfd is sealed against further ones, so
//      whoever gets the descriptor can only read.
//   2. Between calls the sequence is even and the counts are those of the records.
class Ledger {
 public:
  static Result<Ledger> create(PoolShape shape) noexcept;

  // Publishes all of `change` as one moment.
  void publish(const LedgerChange& change) noexcept;

  // A descriptor for LedgerView, also in another process; the caller owns it.
  Result<FileDescriptor> share() const noexcept { return fd_.duplicate(); }
  std::uint64_t pool() const noexcept { return header().pool; }

 private:
  Ledger(FileDescriptor fd, Mapping mapping) noexcept
      : fd_{std::move(fd)}, mapping_{std::move(mapping)} {}
  LedgerHeaderWire& header() const noexcept;
  PartitionRecordWire& partition(std::size_t slot) noexcept;
  SlabRecordWire& record(SlabId slab) noexcept;

  FileDescriptor fd_;
  Mapping mapping_;
};

// The reading side, in any process. Thread rule: any thread.
class LedgerView {
 public:
  struct Moment {
    std::uint64_t epoch{0};
    LedgerCounts counts;
    std::vector<SlabRecord> slabs;
    std::vector<PartitionRecord> partitions;
    Nanoseconds changed_ns{0};
  };

  // Maps `fd` read-only; Corrupt when it is not a ledger of this version, or when whoever has the
  // descriptor could still write to it or change its size.
  static Result<LedgerView> open(const FileDescriptor& fd) noexcept;

  PoolShape shape() const noexcept;
  std::uint64_t pool() const noexcept { return header().pool; }
  // All records at one moment; Unavailable when the writer stopped in the middle of a change.
  Result<Moment> read() const noexcept;
  // Corrupt unless every record is legal, the partitions are counted right, and
  // free + owned + quarantined = all.
  Status audit() const noexcept;
  static Status audit(const Moment& moment) noexcept;

 private:
  explicit LedgerView(Mapping mapping) noexcept : mapping_{std::move(mapping)} {}
  const LedgerHeaderWire& header() const noexcept;
  const PartitionRecordWire& partition(std::size_t slot) const noexcept;
  const SlabRecordWire& record(SlabId slab) const noexcept;
  void read_into(Moment& moment) const noexcept;

  Mapping mapping_;
};

}  // namespace rose::memory
