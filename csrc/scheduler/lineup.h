// The workers that may start a turn, in columns without gaps.
#pragma once

#include <cstddef>
#include <limits>
#include <vector>

#include "scheduler/cost.h"
#include "scheduler/worker_table.h"

namespace rose::scheduler {

// A scan skips workers without a grant or a free seat. Such workers are the majority in a burst of
// revocations or at high load. The order of the rows has no meaning.
//
// Invariants, after settle():
//   1. The rows are the slots with room_tokens >= 0, each once.
//   2. The values of a row equal its slot's values in the table's columns.
class Lineup {
 public:
  static constexpr std::size_t kNoRow = std::numeric_limits<std::size_t>::max();

  // Applies the table's changes. Every call must pass the same table, and only this class may call
  // the table's each_changed().
  void settle(WorkerTable& workers);
  // The slots whose rows may have changed or moved in the last settle().
  const std::vector<std::size_t>& changed() const noexcept { return changed_; }

  // Room for a start, worker numbers, and costs, by row. All end with up to kBlock - 1 padding rows
  // without room.
  const std::vector<double>& tokens(bool spares_caches) const noexcept {
    return spares_caches ? spare_tokens_ : room_tokens_;
  }
  const std::vector<double>& numbers() const noexcept { return numbers_; }
  const CostTable& costs() const noexcept { return costs_; }
  std::size_t size() const noexcept { return slots_.size(); }
  std::size_t slot(std::size_t row) const noexcept { return slots_[row]; }
  // kNoRow for a slot without room.
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
