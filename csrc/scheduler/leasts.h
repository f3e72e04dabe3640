// The cheapest of many workers, found anew only where something changed.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "scheduler/cost.h"

namespace rose::scheduler {

// Columns of the same workers, each padded to whole blocks: nothing fits in a row of nobody.
struct PricedRows {
  std::size_t count;  // of workers
  const std::vector<double>& costs_s;
  const std::vector<double>& tokens;
  const std::vector<double>& numbers;  // exact, up to kCountMax
};

// The least of each block of rows. While the same is asked of the same rows, as for the turns of a
// group, only blocks with a row that changed are read again.
class Leasts {
 public:
  // A row that is not what it was.
  void touch(std::size_t row) { touched_.push_back(row / kBlock); }
  void touch_all() noexcept { count_.reset(); }
  // The cheapest row with `need_tokens`, that with the smallest number among equals.
  // Every row that changed since the last call was touched, unless there are more or fewer rows.
  // Always of the same columns, but for the tokens.
  std::optional<std::size_t> find(const PricedRows& rows, double need_tokens);
  // The least that a row of the block costs that has room; infinity if none has.
  double cost_s(std::size_t block) const noexcept;
  std::size_t blocks() const noexcept { return costs_s_.size() / kLanes; }

 private:
  std::vector<double> costs_s_;  // by block and lane
  std::vector<double> numbers_;  // by block and lane: the smallest of those that cost so little
  std::vector<std::size_t> touched_;  // blocks
  std::optional<std::size_t> count_;  // rows, if these speak of them
  const std::vector<double>* tokens_{nullptr};
  double need_tokens_{0};
};

}  // namespace rose::scheduler
