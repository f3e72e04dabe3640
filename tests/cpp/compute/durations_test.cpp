#include "compute/durations.h"

#include <algorithm>
#include <memory>

#include "check.h"

using namespace rose;
using namespace rose::compute;

TEST(a_recent_quantile_forgets_what_is_older_than_its_window) {
  const auto ring = std::make_unique<DurationRing>();
  CHECK_EQ(ring->recent_quantile(0.99), 0);
  ring->record(1'000'000, 1);
  CHECK_EQ(ring->recent_quantile(0.01), 1'000'000);
  for (std::size_t i = 1; i <= DurationRing::kRecent; ++i) {
    ring->record(static_cast<Nanoseconds>(i), 1);
  }
  CHECK_EQ(ring->recent_quantile(1.0), DurationRing::kRecent);
  CHECK_EQ(ring->recent_quantile(0.5), DurationRing::kRecent / 2);
}

TEST(a_wild_duration_is_forgotten_after_a_while) {
  const auto ring = std::make_unique<DurationRing>();
  CHECK_EQ(ring->newest_ns(), 0);
  ring->record(9'000'000, 1);
  ring->record(100, 1 + DurationRing::kRecentNs);
  CHECK_EQ(ring->recent_quantile(1.0), 9'000'000);
  ring->record(200, 2 + DurationRing::kRecentNs);
  CHECK_EQ(ring->recent_quantile(1.0), 200);
  CHECK_EQ(ring->newest_ns(), 2 + DurationRing::kRecentNs);
}

TEST(a_drain_gives_each_duration_once_and_the_newest_when_there_are_too_many) {
  const auto ring = std::make_unique<DurationRing>();
  for (Nanoseconds i = 0; i < 100; ++i) ring->record(i, 1);
  CHECK_EQ(ring->drain().size(), 100);
  CHECK(ring->drain().empty());
  const auto many = static_cast<Nanoseconds>(3 * DurationRing::kCapacity);
  for (Nanoseconds i = 0; i < many; ++i) ring->record(i, 1);
  const auto got = ring->drain();
  CHECK_EQ(got.size(), DurationRing::kCapacity / 4 * 3);
  CHECK_EQ(got.back(), many - 1);
  CHECK(std::is_sorted(got.begin(), got.end()));
}
