// How long segments took: the last ones, for decisions.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"

namespace rose::compute {

// The last durations as they were. One thread records; any may ask, one at a time may drain.
class DurationRing {
 public:
  static constexpr std::size_t kCapacity = std::size_t{1} << 15;
  // Recent enough to follow a change of batch shape, long enough that its 99th percentile exists.
  static constexpr std::size_t kRecent = 128;
  // One wild duration, a cold start say, must not count for ever.
  static constexpr Nanoseconds kRecentNs = 5'000'000'000;

  void record(Nanoseconds duration_ns, Nanoseconds ended_ns) noexcept;

  // What `share` of the last kRecent durations did not exceed, without those that ended more than
  // kRecentNs before the newest; 0 when there are none.
  Nanoseconds recent_quantile(double share) const noexcept;
  // When the newest ended; 0 when there is none.
  Nanoseconds newest_ns() const noexcept { return newest_ns_.load(std::memory_order_relaxed); }

  // Takes out everything since the last drain that has not been overwritten, oldest first.
  std::vector<Nanoseconds> drain();

 private:
  std::array<std::atomic<Nanoseconds>, kCapacity> slots_{};
  std::array<std::atomic<Nanoseconds>, kRecent> ended_ns_{};
  std::atomic<Nanoseconds> newest_ns_{0};
  std::atomic<std::uint64_t> recorded_{0};
  std::uint64_t drained_{0};  // the reader's
};

}  // namespace rose::compute
