#include "scheduler/freshness.h"

#include <algorithm>
#include <cmath>

#include "scheduler/events.h"

namespace rose::scheduler {

void TrainerClock::publish(std::int64_t versions, Nanoseconds now_ns) noexcept {
  if (has_published_) {
    count_ = std::min(count_ + 1, window_);
    const double took_s = static_cast<double>(now_ns - published_ns_) / kNsPerS;
    const double each_s = took_s / static_cast<double>(versions);
    version_s_ += (each_s - version_s_) / static_cast<double>(count_);
  }
  has_published_ = true;
  published_ns_ = now_ns;
}

double TrainerClock::versions_in(double in_s, Nanoseconds now_ns) const noexcept {
  if (version_s_ <= 0) return 0;
  const double age_s = static_cast<double>(now_ns - published_ns_) / kNsPerS;
  const double next_in_s = std::max(0.0, version_s_ - age_s);
  return in_s < next_in_s ? 0 : 1 + std::floor((in_s - next_in_s) / version_s_);
}

Freshness freshness(const TrainerClock& clock, std::int64_t versions_left, double left_s,
                    double left_s_high, Nanoseconds now_ns) noexcept {
  const auto left = static_cast<double>(versions_left);
  if (clock.versions_in(left_s_high, now_ns) <= left) return Freshness::kSafe;
  return clock.versions_in(left_s, now_ns) <= left ? Freshness::kAtRisk : Freshness::kLost;
}

}  // namespace rose::scheduler
