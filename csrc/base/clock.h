// All time comes from a Clock, so that every policy can run in virtual time.
#pragma once

#include <atomic>
#include <cstdint>

namespace rose {

using Nanoseconds = std::int64_t;

inline constexpr double kNsPerS = 1e9;
inline constexpr double kNsPerMs = 1e6;
inline constexpr double kMsPerS = 1e3;
// Stands for no time limit: 146 years. Its sum with the time of a clock does not overflow.
inline constexpr Nanoseconds kTimeoutMax = Nanoseconds{1} << 62;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Nanoseconds now_ns() const noexcept = 0;
};

// CLOCK_BOOTTIME: keeps counting while the machine sleeps, so a lease cannot outlive its TTL.
class BootClock final : public Clock {
 public:
  Nanoseconds now_ns() const noexcept override;
};

// Real time, for time-outs: a wait must end even if the caller's Clock is virtual and stands still.
inline Nanoseconds real_now_ns() noexcept { return BootClock{}.now_ns(); }

// Virtual time for tests and simulation: it moves only by advance().
class ManualClock final : public Clock {
 public:
  Nanoseconds now_ns() const noexcept override { return now_.load(); }
  void advance(Nanoseconds by) noexcept { now_.fetch_add(by); }

 private:
  std::atomic<Nanoseconds> now_{1};
};

}  // namespace rose
