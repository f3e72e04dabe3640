#include "compute/durations.h"

#include <algorithm>
#include <cmath>

namespace rose::compute {

void DurationRing::record(Nanoseconds duration_ns, Nanoseconds ended_ns) noexcept {
  const std::uint64_t at = recorded_.load(std::memory_order_relaxed);
  slots_[at % kCapacity].store(duration_ns, std::memory_order_relaxed);
  ended_ns_[at % kRecent].store(ended_ns, std::memory_order_relaxed);
  newest_ns_.store(ended_ns, std::memory_order_relaxed);
  recorded_.store(at + 1, std::memory_order_release);
}

// Called for every certificate, so it must be fast. The ring is ordered by the end of the
// durations, so the recent ones are adjacent. Each of them is read once, and only those from the
// quantile upwards are kept in a sorted list.
Nanoseconds DurationRing::recent_quantile(double share, Nanoseconds since_ns) const noexcept {
  const std::uint64_t end = recorded_.load(std::memory_order_acquire);
  const Nanoseconds oldest_ns = std::max(since_ns, newest_ns() - kRecentNs);
  std::uint64_t first = end - std::min<std::uint64_t>(end, kRecent);
  while (first < end && ended_ns_[first % kRecent].load(std::memory_order_relaxed) < oldest_ns) {
    ++first;
  }
  if (first == end) return 0;
  const auto count = static_cast<std::size_t>(end - first);
  const double rank = std::ceil(share * static_cast<double>(count));
  const auto nth = std::clamp<std::size_t>(static_cast<std::size_t>(rank), 1, count);
  const std::size_t above = count - nth + 1;  // including the answer
  std::array<Nanoseconds, kRecent> largest;   // ascending, in the last `above` places
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
  // Skips the oldest quarter of the ring, because durations recorded during the copy may overwrite
  // it.
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
