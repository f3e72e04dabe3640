// A bound that few of the samples to come exceed.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace rose::slo {

// The split-conformal quantile of the last `window` samples (arXiv 2107.07511): of n samples and
// one to come, all orders are equally likely, so the k-th smallest is not exceeded with a
// probability of k / (n + 1). With fewer than 1 / epsilon - 1 samples there is no such bound.
//
// One thread at a time.
class UpperBound {
 public:
  // `epsilon` lies in 0..1 and `window` is at least 1 / epsilon, or there never is a bound.
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
