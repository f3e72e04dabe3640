// A bound that few future samples exceed.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace rose::slo {

// The split-conformal quantile (conformal_rank.h) of the last `window` samples. With fewer than
// 1 / epsilon - 1 samples there is no bound.
//
// One thread at a time.
class UpperBound {
 public:
  // `epsilon`: share of future samples that may exceed the bound, 0..1. `window`: number of samples
  // kept; below 1 / epsilon - 1 there is never a bound.
  UpperBound(double epsilon, std::uint32_t window) noexcept : epsilon_{epsilon}, window_{window} {}

  // The oldest sample is forgotten when the window is full.
  void add(double sample) noexcept;
  // Nothing while there are too few samples.
  std::optional<double> bound() const noexcept;
  // The largest sample in the window; 0 without any.
  double largest() const noexcept { return ordered_.empty() ? 0.0 : ordered_.back(); }

 private:
  double epsilon_;
  std::uint32_t window_;
  std::deque<double> recent_;    // the oldest first
  std::vector<double> ordered_;  // the same, ascending
};

}  // namespace rose::slo
