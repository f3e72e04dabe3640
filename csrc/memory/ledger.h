// Who owns which slab, in shared memory that everybody may read and the arbiter alone can write.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/memfd.h"
#include "base/status.h"
#include "memory/shape.h"
#include "memory/slab_state.h"

namespace rose::memory {

// One slab as the ledger shows it.
//   owner: the partition that holds it; for a quarantined slab the one whose completion is awaited;
//          -1 when unowned.
//   lease_epoch: of the lease it is lent under; 0 when it is not lent.
//   generation: moves on each time the slab comes back; catches ids from before.
struct SlabRecord {
  std::int32_t owner{-1};
  SlabState state{SlabState::kUnowned};
  std::uint64_t lease_epoch{0};
  std::uint32_t generation{0};
};

struct LedgerCounts {
  std::uint32_t free{0};
  std::uint32_t owned{0};
  std::uint32_t quarantined{0};
};

// The layout in the memfd, version 1: a header, then one record per lendable slab. A writer makes
// `sequence` odd, changes what it must, and makes it even again; a reader that saw the same even
// number before and after has seen one moment.
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
  std::uint32_t padding[3];
};
struct SlabRecordWire {
  std::atomic<std::int32_t> owner;
  std::atomic<std::uint32_t> state;
  std::atomic<std::uint64_t> lease_epoch;
  std::atomic<std::uint32_t> generation;
  std::uint32_t padding;
};
static_assert(sizeof(LedgerHeaderWire) == 64 && sizeof(SlabRecordWire) == 24);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// The writing side. Thread rule: the caller's lock.
//
// Invariants:
//   1. The one writable mapping is made before the memfd is sealed against further ones, so
//      whoever gets the descriptor can only read.
//   2. Between calls the sequence is even and the counts are those of the records.
class Ledger {
 public:
  static Result<Ledger> create(PoolShape shape) noexcept;

  // Publishes the records of `changed` (ids into `records`) as one moment.
  void publish(const std::vector<SlabRecord>& records, const std::vector<SlabId>& changed,
               LedgerCounts counts, std::uint64_t epoch) noexcept;

  // A descriptor for LedgerView, also in another process; the caller owns it.
  Result<FileDescriptor> share() const noexcept { return fd_.duplicate(); }

 private:
  Ledger(FileDescriptor fd, Mapping mapping) noexcept
      : fd_{std::move(fd)}, mapping_{std::move(mapping)} {}
  LedgerHeaderWire& header() noexcept;
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
  };

  // Maps `fd` read-only; Corrupt when it is not a ledger of this version.
  static Result<LedgerView> open(const FileDescriptor& fd) noexcept;

  PoolShape shape() const noexcept;
  // All records at one moment; Unavailable when the writer stopped in the middle of a change.
  Result<Moment> read() const noexcept;
  // Corrupt unless every record is legal and free + owned + quarantined = all.
  Status audit() const noexcept;

 private:
  explicit LedgerView(Mapping mapping) noexcept : mapping_{std::move(mapping)} {}
  const LedgerHeaderWire& header() const noexcept;
  const SlabRecordWire& record(SlabId slab) const noexcept;

  Mapping mapping_;
};

}  // namespace rose::memory
