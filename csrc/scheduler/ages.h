// How old things are on average, exactly.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace rose::scheduler {

// Sums in microseconds after the first start: no drift, and no overflow for years.
class AgeSum {
 public:
  void add(Nanoseconds started_ns) noexcept { count(started_ns, 1); }
  void remove(Nanoseconds started_ns) noexcept { count(started_ns, -1); }

  // 0 when there is nobody.
  double mean_s(Nanoseconds now_ns) const noexcept {
    if (started_ == 0) return 0;
    const std::int64_t ages_us = started_ * micros_of(now_ns) - started_sum_us_;
    return static_cast<double>(ages_us) / static_cast<double>(started_) / kUsPerS;
  }

  template <typename Image>
  void image(Image& image) {
    image(has_origin_, origin_ns_, started_, started_sum_us_);
  }

 private:
  static constexpr Nanoseconds kNsPerUs = 1000;
  static constexpr double kUsPerS = 1e6;

  void count(Nanoseconds started_ns, std::int64_t by) noexcept {
    if (!has_origin_) {
      has_origin_ = true;
      origin_ns_ = started_ns;
    }
    started_ += by;
    started_sum_us_ += by * micros_of(started_ns);
  }
  std::int64_t micros_of(Nanoseconds started_ns) const noexcept {
    return (started_ns - origin_ns_) / kNsPerUs;
  }

  bool has_origin_{false};
  Nanoseconds origin_ns_{0};
  std::int64_t started_{0};
  std::int64_t started_sum_us_{0};
};

}  // namespace rose::scheduler
