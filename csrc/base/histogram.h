// Histogram of durations, for reports and for periodic readers.
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

// Counts durations in buckets of at most 1/32 relative width. One thread records, any may read. A
// quantile is the upper edge of its bucket, so it is never too small.
class Histogram {
 public:
  // Number of durations of at most `upper_ns`.
  struct Count {
    Nanoseconds upper_ns{0};
    std::uint64_t at_most{0};
  };

  void record(Nanoseconds duration_ns) noexcept;
  Quantiles quantiles() const noexcept;
  // Returns a cumulative count for each bucket whose upper edge is in `from_ns`..`to_ns`, then the
  // count of all durations, with the largest Nanoseconds value as `upper_ns`. Counts never
  // decrease, so a later result minus an earlier one counts the durations recorded in between.
  std::vector<Count> counts(Nanoseconds from_ns, Nanoseconds to_ns) const;

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
