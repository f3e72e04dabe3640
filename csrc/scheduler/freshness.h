// Predicts whether a trajectory ends before it is too old to learn from.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace rose::scheduler {

// Mean interval between versions; each new interval has the weight 1 / window.
class TrainerClock {
 public:
  explicit TrainerClock(std::int64_t window) noexcept : window_{window} {}

  // Records that `versions` more versions were published at once.
  void publish(std::int64_t versions, Nanoseconds now_ns) noexcept;
  // Mean interval; 0 before the second publication.
  double version_s() const noexcept { return version_s_; }
  // Predicted publications within `in_s` seconds from now; 0 while the interval is unknown. An
  // overdue version counts as due now, so nothing ages further while the trainer is stuck.
  double versions_in(double in_s, Nanoseconds now_ns) const noexcept;

  template <typename Image>
  void image(Image& image) {
    image(window_, count_, version_s_, has_published_, published_ns_);
  }

 private:
  std::int64_t window_;
  std::int64_t count_{0};
  double version_s_{0};
  bool has_published_{false};
  Nanoseconds published_ns_{0};
};

enum class Freshness : std::uint8_t {
  kSafe = 0,  // nine of ten such trajectories end in time
  kAtRisk,    // it may end in time
  kLost,      // it will probably not end in time, on any worker
};

// `versions_left`: versions that may still be published before the trajectory ends. `left_s`,
// `left_s_high`: median and 90th percentile of the trajectory's remaining time.
Freshness freshness(const TrainerClock& clock, std::int64_t versions_left, double left_s,
                    double left_s_high, Nanoseconds now_ns) noexcept;

}  // namespace rose::scheduler
