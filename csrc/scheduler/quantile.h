// Histogram of observed lengths, with quantiles and means of the remaining length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "scheduler/image.h"

namespace rose::scheduler {

// Each length below 16 has its own bin. Above, each octave has eight bins, so the width of a bin is
// at most an eighth of the lengths in it. Integer arithmetic gives the same bin on every machine.
std::size_t bin_of(std::int64_t length) noexcept;
std::int64_t bin_begin(std::size_t bin) noexcept;
inline constexpr std::size_t kBinsMax = 305;  // number of bins for lengths up to kCountMax

// Invariants:
//   1. total() is the sum of weights(), and at most the window.
//   2. There are at most kBinsMax weights.
class Sketch {
 public:
  // Remembers `window` / 2 to `window` observations: above `window`, all weights are halved.
  explicit Sketch(std::int64_t window = 1) noexcept : window_{static_cast<double>(window)} {}

  // `length` in [0, kCountMax].
  void observe(std::int64_t length, double weight = 1);
  // Adds one observation, spread as an exponential distribution of this mean.
  void assume(double mean);
  double total() const noexcept { return total_; }
  const std::vector<double>& weights() const noexcept { return weights_; }

  template <typename Image>
  void image(Image& image) {
    image(window_, total_, weights_);
  }
  bool is_in_bounds() const noexcept { return weights_.size() <= kBinsMax; }

 private:
  double window_;
  double total_{0};
  std::vector<double> weights_;  // by bin, up to the last nonempty one
};

// Remaining length beyond a `given` length.
struct Left {
  double mean{0};
  double low{0};  // quantiles
  double high{0};
};

// Combines the observations of `near` with those of `far`, scaled to `far_observations`. Beyond all
// observed lengths, quantiles are those of a Pareto distribution with exponent 1: the median of the
// remaining length is the `given` length. Within a bin all lengths are equally likely, so a
// quantile's error is less than the bin's width.
Left left_of(const Sketch* near, const Sketch& far, double far_observations, std::int64_t given,
             double low, double high) noexcept;

}  // namespace rose::scheduler
