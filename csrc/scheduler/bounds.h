// What the numbers of a state may be, wherever it came from: within these no sum leaves 64 bits.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/clock.h"

namespace rose::scheduler {

inline constexpr std::int64_t kTotalMax = std::int64_t{1} << 60;

// A sum of counts.
constexpr bool is_total(std::int64_t value) noexcept { return value >= 0 && value <= kTotalMax; }

// Of the past or to come; kNever is later than all of them.
constexpr bool is_time(Nanoseconds time_ns) noexcept {
  return time_ns >= -4 * kTotalMax && time_ns <= 4 * kTotalMax;
}

// Finite, and not below 0.
inline bool is_amount(double value) noexcept { return value >= 0 && std::isfinite(value); }

}  // namespace rose::scheduler
