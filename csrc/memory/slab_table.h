// The arbiter's records of slabs; every change of a slab goes through here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "memory/bit_set.h"
#include "memory/ledger.h"
#include "memory/partition.h"
#include "memory/slab_state.h"

namespace rose::memory {

// The owner and the lease of a slab. lease_id and lease_epoch are 0 if the slab is not lent.
struct Hold {
  PartitionId owner{kNobody};
  std::uint64_t lease_id{0};
  std::uint64_t lease_epoch{0};
};

// Thread rule: the arbiter's mutex.
//
// Invariants:
//   1. A slab has one record, hence at most one owner.
//   2. Every change of state is in the table of moves; RETURNED advances the generation.
//   3. free + owned + quarantined = all, after every move() that ends at rest.
class SlabTable {
 public:
  static Result<SlabTable> create(PoolShape shape) noexcept;

  const SlabRecord& operator[](SlabId slab) const noexcept { return records_[at(slab)]; }
  std::uint64_t lease_of(SlabId slab) const noexcept { return records_[at(slab)].lease_id; }
  std::int32_t size() const noexcept { return static_cast<std::int32_t>(records_.size()); }
  std::int32_t unowned() const noexcept { return static_cast<std::int32_t>(counts_.free); }
  std::int32_t quarantined() const noexcept {
    return static_cast<std::int32_t>(counts_.quarantined);
  }
  // The unowned slab with the smallest id >= from, or size().
  SlabId find_unowned(SlabId from) const noexcept {
    return static_cast<SlabId>(unowned_.find(at(from)));
  }

  // Moves the slab to state `to`. A move to RETURNED or UNOWNED removes the slab's owner. A move to
  // one of these or to QUARANTINED removes the slab's lease.
  Status move(SlabId slab, SlabState to) noexcept;
  // Moves the slab to OWNED or GRANTED, under `hold`.
  Status move(SlabId slab, SlabState to, const Hold& hold) noexcept;

  // True if publish() has changes to write.
  bool has_changed() const noexcept { return !changed_.empty(); }
  // Writes the changes since the last call, and all partitions, to the ledger.
  void publish(std::uint64_t epoch, std::span<const PartitionRecord> partitions,
               Nanoseconds now_ns) noexcept;
  const Ledger& ledger() const noexcept { return ledger_; }
  // Checks that every record is at rest and legal, all counts are right, and the ledger agrees.
  Status audit() const noexcept;

 private:
  SlabTable(Ledger ledger, std::vector<SlabRecord> records) noexcept;
  static std::size_t at(SlabId slab) noexcept { return static_cast<std::size_t>(slab); }
  bool can_move(SlabId slab, SlabState to) const noexcept {
    return is_move(records_[at(slab)].state, to);
  }
  std::string no_move(SlabId slab, SlabState to) const;
  SlabRecord& change(SlabId slab, SlabState to) noexcept;
  void count(SlabState state, std::uint32_t by) noexcept;

  std::vector<SlabRecord> records_;
  BitSet unowned_;
  LedgerCounts counts_;
  Ledger ledger_;
  std::vector<SlabId> changed_;  // since the last publish(), each once
  BitSet is_changed_;
};

}  // namespace rose::memory
