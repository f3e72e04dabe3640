// Limits of the threads that move chunks.
#pragma once

#include <cstddef>

#include "base/clock.h"

namespace rose::transfer {

// An idle thread checks again after an hour.
inline constexpr Nanoseconds kLongestSleepNs = 3'600'000'000'000;
// Bytes that one stream moves before the next stream's turn: enough to make calls cheap.
inline constexpr std::size_t kShareBytes = 1 << 20;
// The smallest transfer under a pace that is worth a call.
inline constexpr std::size_t kPacedStepBytes = 16 << 10;

}  // namespace rose::transfer
