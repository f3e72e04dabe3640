#include "base/histogram.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace rose {

std::size_t Histogram::bucket_of(std::uint64_t value) noexcept {
  if (value < (1U << kSubBits)) return value;
  const auto exponent = static_cast<unsigned>(std::bit_width(value)) - 1;
  const std::uint64_t mantissa = (value >> (exponent - kSubBits)) & ((1U << kSubBits) - 1);
  return ((exponent - kSubBits + 1) << kSubBits) + mantissa;
}

std::uint64_t Histogram::upper_edge(std::size_t bucket) noexcept {
  if (bucket < (1U << kSubBits)) return bucket;
  const std::size_t shift = (bucket >> kSubBits) - 1;
  const std::uint64_t mantissa = (bucket & ((1U << kSubBits) - 1)) + (1U << kSubBits);
  return ((mantissa + 1) << shift) - 1;
}

void Histogram::record(Nanoseconds duration_ns) noexcept {
  const Nanoseconds duration = std::max<Nanoseconds>(duration_ns, 0);
  counts_[bucket_of(static_cast<std::uint64_t>(duration))].fetch_add(1, std::memory_order_relaxed);
  if (duration > max_ns_.load(std::memory_order_relaxed)) {
    max_ns_.store(duration, std::memory_order_relaxed);
  }
  count_.fetch_add(1, std::memory_order_release);
}

Quantiles Histogram::quantiles() const noexcept {
  Quantiles out;
  out.count = count_.load(std::memory_order_acquire);
  out.max_ns = max_ns_.load(std::memory_order_relaxed);
  const std::uint64_t rank_p50 = (out.count + 1) / 2;
  const std::uint64_t rank_p99 = out.count - out.count / 100;
  std::uint64_t seen = 0;
  for (std::size_t bucket = 0; bucket < kBuckets && seen < rank_p99; ++bucket) {
    const std::uint64_t before = seen;
    seen += counts_[bucket].load(std::memory_order_relaxed);
    const auto edge = std::min(static_cast<Nanoseconds>(upper_edge(bucket)), out.max_ns);
    if (before < rank_p50 && seen >= rank_p50) out.p50_ns = edge;
    if (before < rank_p99 && seen >= rank_p99) out.p99_ns = edge;
  }
  return out;
}

std::vector<Histogram::Count> Histogram::counts(Nanoseconds from_ns, Nanoseconds to_ns) const {
  std::vector<Count> out;
  std::uint64_t seen = 0;
  for (std::size_t bucket = 0; bucket < kBuckets; ++bucket) {
    seen += counts_[bucket].load(std::memory_order_relaxed);
    const auto edge = static_cast<Nanoseconds>(upper_edge(bucket));
    if (edge >= from_ns && edge <= to_ns) out.push_back({edge, seen});
  }
  out.push_back({std::numeric_limits<Nanoseconds>::max(), seen});
  return out;
}

}  // namespace rose
