// Recent segment durations, for decisions.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"

namespace rose::compute {

// A ring of the last durations. One thread records; any may query, one at a time may drain.
class DurationRing {
 public:
  static constexpr std::size_t kCapacity = std::size_t{1} << 15;
  // Number of durations in a quantile: small enough to follow a change of batch shape, large enough
  // for a 99th percentile.
  static constexpr std::size_t kRecent = 128;
  // Maximum age of a duration in a quantile: an outlier, such as a cold start, must not count for
  // ever.
  static constexpr Nanoseconds kRecentNs = 5'000'000'000;

  void record(Nanoseconds duration_ns, Nanoseconds ended_ns) noexcept;

  // The `share` quantile of the last kRecent durations that ended at `since_ns` or later, and at
  // most kRecentNs before the newest; 0 without durations.
  Nanoseconds recent_quantile(double share, Nanoseconds since_ns = 0) const noexcept;
  // End of the newest duration; 0 without durations.
  Nanoseconds newest_ns() const noexcept { return newest_ns_.load(std::memory_order_relaxed); }

  // Returns the durations recorded since the last drain, oldest first; at most the newest 24,576.
  std::vector<Nanoseconds> drain();

 private:
  std::array<std::atomic<Nanoseconds>, kCapacity> slots_{};
  std::array<std::atomic<Nanoseconds>, kRecent> ended_ns_{};
  std::atomic<Nanoseconds> newest_ns_{0};
  std::atomic<std::uint64_t> recorded_{0};
  std::uint64_t drained_{0};  // used by the draining thread only
};

}  // namespace rose::compute
