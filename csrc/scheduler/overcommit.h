// Overcommitment of memory by a job's trajectories.
#pragma once

#include <algorithm>
#include <cmath>

namespace rose::scheduler {

// Contexts grow until their trajectories end, but not all contexts have their final size at once.
// The value learns how far memory can be overcommitted: it shrinks with each trajectory that lost a
// cache for lack of memory, and grows with every other trajectory. The value is stable when the
// share of trajectories that lose a cache equals `share`.
class Overcommit {
 public:
  static constexpr double kMin = 0.5;
  static constexpr double kMax = 16;  // for trajectories that are in tools most of the time

  // `share` is below 1.
  void learn(bool was_displaced, double share) noexcept {
    const double change = was_displaced ? -kRate : kRate * share / (1 - share);
    value_ = std::clamp(value_ * (1 + change), kMin, kMax);
  }
  // Limit of the sum of all final contexts, as a multiple of lent memory.
  double value() const noexcept { return value_; }

  template <typename Image>
  void image(Image& image) {
    image(value_);
  }

 private:
  static constexpr double kRate = 1.0 / 64;  // 44 displaced trajectories halve the value
  static constexpr double kFirst = 4;

  double value_{kFirst};
};

}  // namespace rose::scheduler
