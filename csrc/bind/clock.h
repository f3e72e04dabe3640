// Time arguments of the bound classes: an optional Clock, and durations in milliseconds.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include "base/clock.h"
#include "bind/status.h"

namespace rose::bind {

inline std::shared_ptr<const Clock> clock_or_boot(std::shared_ptr<Clock> clock) {
  return clock != nullptr ? std::move(clock) : std::make_shared<BootClock>();
}

inline double ms_of(Nanoseconds ns) noexcept { return static_cast<double>(ns) / kNsPerMs; }

// Converts a time that Python has checked.
inline Nanoseconds ns_of(double ms) noexcept {
  return static_cast<Nanoseconds>(std::llround(ms * kNsPerMs));
}

// Converts the duration `name`, and caps it at a year, so that no sum of times overflows.
inline Nanoseconds ns_of_ms(double ms, const char* name) {
  constexpr double kYearMs = 365.0 * 24 * 3600 * 1000;
  if (!(ms >= 0)) {
    raise(Status::invalid_argument(std::string{name} + " must be >= 0, got " + std::to_string(ms)));
  }
  return static_cast<Nanoseconds>(std::min(ms, kYearMs) * kNsPerMs);
}

}  // namespace rose::bind
