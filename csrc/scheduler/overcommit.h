// How many trajectories of a job memory is taken to hold.
#pragma once

#include <algorithm>
#include <cmath>

namespace rose::scheduler {

// Contexts grow until their trajectories are over, so that what fits now may not fit for long; on
// the other hand not all of them are at their ends at once. How far that goes is learned: the value
// shrinks with each trajectory that lost a cache for want of room and grows with each that did not,
// so that it stands still when the share that lost one is the one it is told to keep.
class Overcommit {
 public:
  static constexpr double kMin = 0.5;
  static constexpr double kMax = 16;  // where trajectories are in tools nearly all the time

  // `share` is below 1.
  void learn(bool was_displaced, double share) noexcept {
    const double change = was_displaced ? -kRate : kRate * share / (1 - share);
    value_ = std::clamp(value_ * (1 + change), kMin, kMax);
  }
  // The ends of all contexts may come to so many times the memory that is lent.
  double value() const noexcept { return value_; }
  bool is_sound() const noexcept { return value_ >= kMin && value_ <= kMax; }

  template <typename Image>
  void image(Image& image) {
    image(value_);
  }

 private:
  static constexpr double kRate = 1.0 / 64;  // it halves in some fifty trajectories
  static constexpr double kFirst = 4;

  double value_{kFirst};
};

}  // namespace rose::scheduler
