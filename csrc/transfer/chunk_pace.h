// A limit on the rate of bytes, which leaves the rest of a link to its other users.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/clock.h"

namespace rose::transfer {

// A token bucket. Between any two moments, at most rate * time + burst is taken. The caller passes
// the time, so the law can be tested. One thread.
class ChunkPace {
 public:
  static constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();
  // At one byte a second such a burst refills before the clock overflows.
  static constexpr std::uint64_t kBurstBytesMax = std::uint64_t{1} << 32;

  // Sets the rate to `bytes_per_s` (0: unlimited) and the burst to `burst_bytes`. Bytes taken
  // before still count, so frequent changes of the rate do not raise it.
  void set(Nanoseconds now_ns, std::uint64_t bytes_per_s, std::uint64_t burst_bytes) noexcept {
    const std::uint64_t missing = missing_bytes(now_ns);
    bytes_per_s_ = bytes_per_s;
    burst_bytes_ = std::clamp<std::uint64_t>(burst_bytes, 1, kBurstBytesMax);
    full_ns_ = now_ns + ns_of(std::min(missing, burst_bytes_));
  }

  bool is_limited() const noexcept { return bytes_per_s_ > 0; }

  // Bytes that may be sent now.
  std::uint64_t available(Nanoseconds now_ns) const noexcept {
    if (!is_limited()) return kUnlimited;
    const std::uint64_t missing = missing_bytes(now_ns);
    return missing < burst_bytes_ ? burst_bytes_ - missing : 0;
  }

  // Takes `nbytes`, at most what is available.
  void take(Nanoseconds now_ns, std::uint64_t nbytes) noexcept {
    if (is_limited()) full_ns_ = std::max(full_ns_, now_ns) + ns_of(nbytes);
  }

  // Time until `nbytes` are available, or the whole burst if that is less.
  Nanoseconds wait_ns(Nanoseconds now_ns, std::uint64_t nbytes) const noexcept {
    if (!is_limited()) return 0;
    const std::uint64_t spare = burst_bytes_ - std::min(nbytes, burst_bytes_);
    return std::max<Nanoseconds>(full_ns_ - now_ns - floor_ns_of(spare), 0);
  }

 private:
  using Wide = unsigned __int128;  // a product of nanoseconds and bytes per second
  static constexpr Wide kNsPerS = 1'000'000'000;

  std::uint64_t missing_bytes(Nanoseconds now_ns) const noexcept {
    if (!is_limited() || full_ns_ <= now_ns) return 0;
    const Wide left_ns = static_cast<Wide>(full_ns_ - now_ns);
    return static_cast<std::uint64_t>((left_ns * bytes_per_s_ + kNsPerS - 1) / kNsPerS);
  }
  // Rounded up, so that the rate is never exceeded.
  Nanoseconds ns_of(std::uint64_t nbytes) const noexcept {
    if (!is_limited()) return 0;
    return static_cast<Nanoseconds>((nbytes * kNsPerS + bytes_per_s_ - 1) / bytes_per_s_);
  }
  Nanoseconds floor_ns_of(std::uint64_t nbytes) const noexcept {
    return static_cast<Nanoseconds>(nbytes * kNsPerS / bytes_per_s_);
  }

  std::uint64_t bytes_per_s_{0};
  std::uint64_t burst_bytes_{1};
  Nanoseconds full_ns_{0};  // when the bucket is full again
};

}  // namespace rose::transfer
