// Whether a trajectory will be over before it is too old to learn from.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace rose::scheduler {

// How long a version takes: an average in which each interval counts for 1 / window of it.
class TrainerClock {
 public:
  explicit TrainerClock(std::int64_t window) noexcept : window_{window} {}

  // `versions` more came out at once.
  void publish(std::int64_t versions, Nanoseconds now_ns) noexcept;
  // 0 until versions came out twice.
  double version_s() const noexcept { return version_s_; }
  // How many more are out after `in_s` from now; 0 while the clock knows nothing. One that is late
  // comes at once: a trainer that stands still makes nothing older.
  double versions_in(double in_s, Nanoseconds now_ns) const noexcept;

  template <typename Image>
  void image(Image& image) {
    image(window_, count_, version_s_, has_published_, published_ns_);
  }
  bool is_sound() const noexcept;

 private:
  std::int64_t window_;
  std::int64_t count_{0};
  double version_s_{0};
  bool has_published_{false};
  Nanoseconds published_ns_{0};
};

enum class Freshness : std::uint8_t {
  kSafe = 0,  // nine of ten such trajectories are over in time
  kAtRisk,    // it may be over in time
  kLost,      // more likely it is not, wherever it runs
};

// `versions_left`: that may still come out before it is over. `left_s` and `left_s_high`: the
// median and the 90th percentile of what is left of it.
Freshness freshness(const TrainerClock& clock, std::int64_t versions_left, double left_s,
                    double left_s_high, Nanoseconds now_ns) noexcept;

}  // namespace rose::scheduler
