// The workers that may start something, in columns without gaps.
#pragma once

#include <cstddef>
#include <limits>
#include <vector>

#include "scheduler/cost.h"
#include "scheduler/worker_table.h"

namespace rose::scheduler {

// A scan of them reads neither those whose leases are gone nor those that are full: in a burst of
// revocations, and where most seats are taken, that is most of all workers. The order of the rows
// means nothing.
//
// Invariants, after settle():
//   1. The rows are the slots with room_tokens >= 0, each once.
//   2. A row says what the table's columns say of its slot.
class Lineup {
 public:
  static constexpr std::size_t kNoRow = std::numeric_limits<std::size_t>::max();

  // Always of the same table, whose changes nobody else asks for.
  void settle(WorkerTable& workers);
  // The slots whose rows may have changed, or moved, when that was last called.
  const std::vector<std::size_t>& changed() const noexcept { return changed_; }

  // What a start may take, whose it is, and the costs, by row. All have up to kBlock - 1 more at
  // the end, of nobody; nothing fits there.
  const std::vector<double>& tokens(bool spares_caches) const noexcept {
    return spares_caches ? spare_tokens_ : room_tokens_;
  }
  const std::vector<double>& numbers() const noexcept { return numbers_; }
  const CostTable& costs() const noexcept { return costs_; }
  std::size_t size() const noexcept { return slots_.size(); }
  std::size_t slot(std::size_t row) const noexcept { return slots_[row]; }
  // kNoRow for one without room.
  std::size_t row(std::size_t slot) const noexcept { return rows_[slot]; }

 private:
  void open(std::size_t slot);
  void close(std::size_t slot, const WorkerColumns& all);
  void set(std::size_t row, const WorkerColumns& all, std::size_t slot) noexcept;
  void resize();

  CostTable costs_;
  std::vector<double> room_tokens_;
  std::vector<double> spare_tokens_;
  std::vector<double> numbers_;
  std::vector<std::size_t> slots_;  // by row
  std::vector<std::size_t> rows_;   // by slot
  std::vector<std::size_t> changed_;
};

}  // namespace rose::scheduler
