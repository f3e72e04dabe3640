// Counts of durations: for reports, and for whoever looks at them from time to time.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"

namespace rose {

struct Quantiles {
  std::uint64_t count{0};
  Nanoseconds p50_ns{0};
  Nanoseconds p99_ns{0};
  Nanoseconds max_ns{0};
};

// Counts durations in buckets of at most 1/32 relative width. One thread records, any may read; a
// quantile is the upper edge of its bucket, so it never flatters.
class Histogram {
 public:
  void record(Nanoseconds duration_ns) noexcept;
  Quantiles quantiles() const noexcept;

 private:
  static constexpr unsigned kSubBits = 5;
  static constexpr std::size_t kBuckets = (64 - kSubBits + 1) << kSubBits;

  static std::size_t bucket_of(std::uint64_t value) noexcept;
  static std::uint64_t upper_edge(std::size_t bucket) noexcept;

  std::array<std::atomic<std::uint64_t>, kBuckets> counts_{};
  std::atomic<std::uint64_t> count_{0};
  std::atomic<Nanoseconds> max_ns_{0};
};

}  // namespace rose
