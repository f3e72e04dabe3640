#include "compute/durations.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace rose::compute {

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

void DurationRing::record(Nanoseconds duration_ns, Nanoseconds ended_ns) noexcept {
  const std::uint64_t at = recorded_.load(std::memory_order_relaxed);
  slots_[at % kCapacity].store(duration_ns, std::memory_order_relaxed);
  ended_ns_[at % kRecent].store(ended_ns, std::memory_order_relaxed);
  newest_ns_.store(ended_ns, std::memory_order_relaxed);
  recorded_.store(at + 1, std::memory_order_release);
}

// A certificate asks each time, so it is one look at each duration: they ended in the order of the
// ring, and of a high quantile only what lies above it is kept in order.
Nanoseconds DurationRing::recent_quantile(double share) const noexcept {
  const std::uint64_t end = recorded_.load(std::memory_order_acquire);
  const Nanoseconds oldest_ns = newest_ns() - kRecentNs;
  std::uint64_t first = end - std::min<std::uint64_t>(end, kRecent);
  while (first < end && ended_ns_[first % kRecent].load(std::memory_order_relaxed) < oldest_ns) {
    ++first;
  }
  if (first == end) return 0;
  const auto count = static_cast<std::size_t>(end - first);
  const double rank = std::ceil(share * static_cast<double>(count));
  const auto nth = std::clamp<std::size_t>(static_cast<std::size_t>(rank), 1, count);
  const std::size_t above = count - nth + 1;  // the answer included
  std::array<Nanoseconds, kRecent> largest;   // ascending, the last `above` places
  std::fill(largest.end() - static_cast<std::ptrdiff_t>(above), largest.end(), 0);
  Nanoseconds* const lowest = largest.data() + kRecent - above;
  for (std::uint64_t at = first; at < end; ++at) {
    const Nanoseconds duration = slots_[at % kCapacity].load(std::memory_order_relaxed);
    if (duration <= *lowest) continue;
    Nanoseconds* place = lowest;
    for (; place + 1 < largest.data() + kRecent && place[1] < duration; ++place) *place = place[1];
    *place = duration;
  }
  return *lowest;
}

std::vector<Nanoseconds> DurationRing::drain() {
  const std::uint64_t end = recorded_.load(std::memory_order_acquire);
  std::uint64_t from = drained_;
  // A quarter is left as a margin for what is recorded while this copies.
  if (end - from > kCapacity / 4 * 3) from = end - kCapacity / 4 * 3;
  std::vector<Nanoseconds> out;
  out.reserve(end - from);
  for (; from < end; ++from) {
    out.push_back(slots_[from % kCapacity].load(std::memory_order_relaxed));
  }
  drained_ = end;
  return out;
}

}  // namespace rose::compute
