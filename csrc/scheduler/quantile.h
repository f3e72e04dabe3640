// What has been seen of a length, as counts in bins: quantiles and means of what is left of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "scheduler/image.h"

namespace rose::scheduler {

// Lengths below 16 have a bin each; above, eight bins share each octave, so a bin is at most an
// eighth of its values wide. Integers alone decide the bin: every machine agrees.
std::size_t bin_of(std::int64_t length) noexcept;
std::int64_t bin_begin(std::size_t bin) noexcept;
inline constexpr std::size_t kBinsMax = 305;  // of lengths up to kCountMax

// Invariants:
//   1. total() is the sum of weights(), and at most the window.
//   2. At most kBinsMax weights, whatever was seen.
class Sketch {
 public:
  // Remembers between half of `window` observations and all of it: when there are more, every one
  // counts half of what it did.
  explicit Sketch(std::int64_t window = 1) noexcept : window_{static_cast<double>(window)} {}

  // `length` in [0, kCountMax].
  void observe(std::int64_t length, double weight = 1);
  // One observation, spread as an exponential distribution of this mean is.
  void assume(double mean);
  double total() const noexcept { return total_; }
  const std::vector<double>& weights() const noexcept { return weights_; }

  template <typename Image>
  void image(Image& image) {
    image(window_, total_, weights_);
  }
  bool is_sound() const noexcept;

 private:
  double window_;
  double total_{0};
  std::vector<double> weights_;  // by bin, to the last that has one
};

// What is left of a length that is more than some `given` already.
struct Left {
  double mean{0};
  double low{0};  // quantiles
  double high{0};
};

// What `near` has seen, and as if `far` had seen `far_observations` in all. A length that is longer
// than all that was seen goes on for as long as it has lasted, if nothing else is known: its
// quantiles are those of a Pareto distribution with exponent 1. Within a bin all lengths are
// equally likely, so a quantile is off by less than its bin.
Left left_of(const Sketch* near, const Sketch& far, double far_observations, std::int64_t given,
             double low, double high) noexcept;

}  // namespace rose::scheduler
