// Incremental search for the cheapest of many workers.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "scheduler/cost.h"

namespace rose::scheduler {

// Columns of the same workers, padded to whole blocks; padding rows have no room.
struct PricedRows {
  std::size_t count;  // number of workers
  const std::vector<double>& costs_s;
  const std::vector<double>& tokens;
  const std::vector<double>& numbers;  // exact, up to kCountMax
};

// Keeps the minimum of each block of rows. While the query and the number of rows stay the same, as
// for the turns of a group, only blocks with changed rows are read again.
class Leasts {
 public:
  // Marks a changed row.
  void touch(std::size_t row) { touched_.push_back(row / kBlock); }
  void touch_all() noexcept { count_.reset(); }
  // The cheapest row with room for `need_tokens`; among equals, the one with the smallest number.
  // The caller must have touched every row that changed since the last call, unless the count
  // differs. The caller must pass the same columns every time; only `tokens` may be another column.
  std::optional<std::size_t> find(const PricedRows& rows, double need_tokens);
  // The minimum cost of the block's rows with room; infinity without any.
  double cost_s(std::size_t block) const noexcept;
  std::size_t blocks() const noexcept { return costs_s_.size() / kLanes; }

 private:
  std::vector<double> costs_s_;       // by block and lane
  std::vector<double> numbers_;       // by block and lane: the smallest number at that cost
  std::vector<std::size_t> touched_;  // blocks
  std::optional<std::size_t> count_;  // rows of the stored minima, if these are valid
  const std::vector<double>* tokens_{nullptr};
  double need_tokens_{0};
};

}  // namespace rose::scheduler
