// Bounds on the numbers in the scheduler's state. Within these bounds no sum overflows 64 bits.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/clock.h"

namespace rose::scheduler {

inline constexpr std::int64_t kTotalMax = std::int64_t{1} << 60;

// True if a value is a valid sum of counts.
constexpr bool is_total(std::int64_t value) noexcept { return value >= 0 && value <= kTotalMax; }

// True if a value is a valid time, past or future. kNever is later than all valid times.
constexpr bool is_time(Nanoseconds time_ns) noexcept {
  return time_ns >= -4 * kTotalMax && time_ns <= 4 * kTotalMax;
}

// True if a value is finite and not negative.
inline bool is_amount(double value) noexcept { return value >= 0 && std::isfinite(value); }

}  // namespace rose::scheduler
