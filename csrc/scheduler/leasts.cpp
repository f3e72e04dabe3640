#include "scheduler/leasts.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>

namespace rose::scheduler {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Masks = std::int64_t __attribute__((vector_size(kLanes * sizeof(std::int64_t))));

// For each lane, the least cost of the lane's rows (infinite if no row has room), and the smallest
// worker number among the rows with this cost.
struct LaneLeasts {
  std::array<double, kLanes> costs_s;
  std::array<double, kLanes> numbers;
};

// The following functions are always inlined, so that each caller compiles them for its own
// instruction set. They do not branch on a cost, because such branches are unpredictable.

[[gnu::always_inline]] inline void load(const std::vector<double>& column, std::size_t row,
                                        Lanes& lanes) noexcept {
  std::memcpy(&lanes, &column[row], sizeof lanes);
}

[[gnu::always_inline]] inline void lower(Lanes& least, const Lanes& other) noexcept {
  least = other < least ? other : least;
}

// Puts NaN into these lanes, so that no comparison selects them.
[[gnu::always_inline]] inline void leave_out(const Masks& these, Lanes& lanes) noexcept {
  Masks bits;
  std::memcpy(&bits, &lanes, sizeof bits);
  bits |= these;
  std::memcpy(&lanes, &bits, sizeof lanes);
}

[[gnu::always_inline]] inline void look(const PricedRows& rows, double need_tokens,
                                        std::size_t block, double* least_s,
                                        double* least_number) noexcept {
  std::array<Lanes, kBlock / kLanes> costs_s;  // in registers, once the loops are unrolled
  Lanes some;
  Lanes least = Lanes{} + kInfinity;
  Lanes number = least;
#pragma GCC unroll 8
  for (std::size_t i = 0; i < costs_s.size(); ++i) {
    load(rows.costs_s, block * kBlock + i * kLanes, costs_s[i]);
    load(rows.tokens, block * kBlock + i * kLanes, some);
    leave_out(some < need_tokens, costs_s[i]);
    lower(least, costs_s[i]);
  }
#pragma GCC unroll 8
  for (std::size_t i = 0; i < costs_s.size(); ++i) {
    load(rows.numbers, block * kBlock + i * kLanes, some);
    leave_out(costs_s[i] != least, some);
    lower(number, some);
  }
  std::memcpy(least_s, &least, sizeof least);
  std::memcpy(least_number, &number, sizeof number);
}

// Recomputes the minima of the given blocks, then finds the minimum over all blocks.
[[gnu::always_inline]] inline void look(const PricedRows& rows, double need_tokens,
                                        const std::vector<std::size_t>& blocks,
                                        std::vector<double>& costs_s, std::vector<double>& numbers,
                                        LaneLeasts& all) noexcept {
  for (const std::size_t block : blocks) {
    look(rows, need_tokens, block, &costs_s[block * kLanes], &numbers[block * kLanes]);
  }
  Lanes cost_s;
  Lanes some;
  Lanes least = Lanes{} + kInfinity;
  Lanes number = least;
  for (std::size_t at = 0; at < costs_s.size(); at += kLanes) {
    load(costs_s, at, cost_s);
    lower(least, cost_s);
  }
  for (std::size_t at = 0; at < costs_s.size(); at += kLanes) {
    load(costs_s, at, cost_s);
    load(numbers, at, some);
    leave_out(cost_s != least, some);
    lower(number, some);
  }
  std::memcpy(all.costs_s.data(), &least, sizeof least);
  std::memcpy(all.numbers.data(), &number, sizeof number);
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] void look_avx2(const PricedRows& rows, double need_tokens,
                                       const std::vector<std::size_t>& blocks,
                                       std::vector<double>& costs_s, std::vector<double>& numbers,
                                       LaneLeasts& all) noexcept {
  look(rows, need_tokens, blocks, costs_s, numbers, all);
}
#endif

void look_here(const PricedRows& rows, double need_tokens, const std::vector<std::size_t>& blocks,
               std::vector<double>& costs_s, std::vector<double>& numbers,
               LaneLeasts& all) noexcept {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) {
    return look_avx2(rows, need_tokens, blocks, costs_s, numbers, all);
  }
#endif
  look(rows, need_tokens, blocks, costs_s, numbers, all);
}

}  // namespace

std::optional<std::size_t> Leasts::find(const PricedRows& rows, double need_tokens) {
  if (count_ != rows.count || tokens_ != &rows.tokens || need_tokens_ != need_tokens) {
    count_ = rows.count;
    tokens_ = &rows.tokens;
    need_tokens_ = need_tokens;
    touched_.resize(rows.costs_s.size() / kBlock);
    std::iota(touched_.begin(), touched_.end(), std::size_t{0});
    costs_s_.resize(touched_.size() * kLanes);
    numbers_.resize(costs_s_.size());
  }
  LaneLeasts all;
  look_here(rows, need_tokens, touched_, costs_s_, numbers_, all);
  touched_.clear();
  const double least_s = *std::min_element(all.costs_s.begin(), all.costs_s.end());
  if (least_s == kInfinity) return std::nullopt;
  double number = kInfinity;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    if (all.costs_s[lane] == least_s) number = std::min(number, all.numbers[lane]);
  }
  const auto found = std::find(numbers_.begin(), numbers_.end(), number) - numbers_.begin();
  const auto place = static_cast<std::size_t>(found);
  std::size_t row = place / kLanes * kBlock + place % kLanes;
  while (rows.numbers[row] != number) row += kLanes;
  return row;
}

double Leasts::cost_s(std::size_t block) const noexcept {
  const auto first = costs_s_.begin() + static_cast<std::ptrdiff_t>(block * kLanes);
  return *std::min_element(first, first + kLanes);
}

}  // namespace rose::scheduler
