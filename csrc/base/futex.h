// Waiting on a 32-bit word in shared memory. FUTEX_PRIVATE_FLAG is never set, so this works between
// processes.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace rose {

// Sleeps while `word` holds `expected`, for at most `timeout_ns` (> 0). Returns after a wake-up or
// a signal, at the deadline, or at once if `word` has another value, so the caller must read `word`
// again.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                Nanoseconds timeout_ns) noexcept;

// Wakes every waiter of `word`.
void futex_wake_all(const std::atomic<std::uint32_t>& word) noexcept;

}  // namespace rose
