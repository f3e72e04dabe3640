// The owner of each slab, in shared memory that every tenant can read and only the arbiter can
// write.
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

// One slab in the ledger.
//   owner: the partition that holds the slab. If the slab is quarantined, the partition whose work
//          must be proven complete. -1 when unowned.
//   lease_epoch, lease_id: the lease under which the slab is lent; 0 when it is not lent.
//   generation: advances each time the slab returns, so that older block ids are detected.
struct SlabRecord {
  std::int32_t owner{-1};
  SlabState state{SlabState::kUnowned};
  std::uint64_t lease_epoch{0};
  std::uint32_t generation{0};
  std::uint64_t lease_id{0};

  bool operator==(const SlabRecord&) const = default;
};

// A revocation in the ledger; `wanted` and `pending` are numbers of slabs. `id` is 0 if there was
// none.
struct RevocationNote {
  std::uint64_t id{0};
  std::int32_t wanted{0};
  std::int32_t pending{0};
  Nanoseconds deadline_ns{0};  // on the arbiter's clock
  // The earliest deadline of the partition's current revocations; 0 without one.
  Nanoseconds due_ns{0};
};

// One partition in the ledger; `partition.id` is kNobody if there is none.
//   leases: number of leases with at least one slab.
//   free_blocks, used_blocks, pins: as of the last change of ownership or expire(). Changes in
//                                   between do not appear in the ledger.
//   revocation: the newest revocation of slabs of this partition.
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
// A writer makes `sequence` odd, writes its changes, and makes it even again; a reader that reads
// the same even number before and after has a consistent copy.
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
  // Identifies the pool: the inode of its ledger.
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

// The contents of one change.
struct LedgerChange {
  const std::vector<SlabRecord>& slabs;
  const std::vector<SlabId>& changed;  // ids of the slabs whose records changed
  LedgerCounts counts;
  std::uint64_t epoch{0};
  std::span<const PartitionRecord> partitions;  // all of them, at most kPartitionsMax
  Nanoseconds now_ns{0};
};

// The writing side. Thread rule: the caller's lock.
//
// Invariants:
//   1. The only writable mapping is made before the memfd is sealed against further writable
//      mappings, so that other holders of the descriptor can only read.
//   2. Between calls the sequence is even and the counts match the records.
class Ledger {
 public:
  static Result<Ledger> create(PoolShape shape) noexcept;

  // Publishes all of `change` atomically.
  void publish(const LedgerChange& change) noexcept;

  // A descriptor for LedgerView, in any process; the caller owns it.
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

  // Maps `fd` read-only; Corrupt if it is not a ledger of this version, or if a holder of the
  // descriptor could still write to it or change its size.
  static Result<LedgerView> open(const FileDescriptor& fd) noexcept;

  PoolShape shape() const noexcept;
  std::uint64_t pool() const noexcept { return header().pool; }
  // Returns all records at one moment; Unavailable if the writer stopped in the middle of a change.
  Result<Moment> read() const noexcept;
  // Returns the record of one partition, if it exists, without a copy of the slabs' records;
  // Unavailable as in read().
  Result<std::optional<PartitionRecord>> read(PartitionId id) const noexcept;
  // Corrupt unless every record is legal, the partitions' counts are right, and free + owned +
  // quarantined = all.
  Status audit() const noexcept;
  static Status audit(const Moment& moment) noexcept;

 private:
  explicit LedgerView(Mapping mapping) noexcept : mapping_{std::move(mapping)} {}
  const LedgerHeaderWire& header() const noexcept;
  const PartitionRecordWire& partition(std::size_t slot) const noexcept;
  const SlabRecordWire& record(SlabId slab) const noexcept;
  void read_into(Moment& moment) const noexcept;
  template <typename Read>
  Status at_one_moment(const Read& read) const noexcept;

  Mapping mapping_;
};

}  // namespace rose::memory
