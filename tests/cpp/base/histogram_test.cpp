#include "base/histogram.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <random>

#include "check.h"

using namespace rose;

TEST(a_quantile_is_never_below_the_truth_and_at_most_a_32nd_above) {
  std::mt19937_64 random{7};
  for (const int bits : {4, 5, 6, 10, 20, 31, 40, 62}) {
    const auto histogram = std::make_unique<Histogram>();
    std::vector<Nanoseconds> all;
    for (int i = 0; i < 1000; ++i) {
      const auto value = static_cast<Nanoseconds>(random() >> (64 - bits));
      all.push_back(value);
      histogram->record(value);
    }
    std::sort(all.begin(), all.end());
    const Quantiles got = histogram->quantiles();
    CHECK_EQ(got.count, 1000);
    CHECK_EQ(got.max_ns, all.back());
    CHECK(got.p50_ns >= all[499] && got.p50_ns <= all[499] + all[499] / 32);
    CHECK(got.p99_ns >= all[989] && got.p99_ns <= all[989] + all[989] / 32);
  }
}

TEST(an_empty_histogram_says_zero_and_a_negative_duration_counts_as_zero) {
  const auto histogram = std::make_unique<Histogram>();
  CHECK_EQ(histogram->quantiles().count, 0);
  CHECK_EQ(histogram->quantiles().p99_ns, 0);
  histogram->record(-5);
  CHECK_EQ(histogram->quantiles().max_ns, 0);
  CHECK_EQ(histogram->quantiles().count, 1);
}

TEST(the_largest_duration_has_a_bucket) {
  const auto histogram = std::make_unique<Histogram>();
  histogram->record(std::numeric_limits<Nanoseconds>::max());
  CHECK_EQ(histogram->quantiles().p50_ns, std::numeric_limits<Nanoseconds>::max());
}

TEST(counts_are_of_all_durations_up_to_an_edge_and_what_lies_beyond_is_in_the_last) {
  const auto histogram = std::make_unique<Histogram>();
  for (const Nanoseconds duration : {5, 1000, 1000, 70'000, 9'000'000}) histogram->record(duration);
  const auto counts = histogram->counts(500, 100'000);
  CHECK(counts.size() > 100);
  std::uint64_t before = 1;  // values below all edges count in the first bin
  Nanoseconds edge = 499;
  for (const Histogram::Count& one : counts) {
    CHECK(one.upper_ns > edge && one.at_most >= before);
    if (one.upper_ns <= 100'000) {
      CHECK_EQ(one.at_most, 1U + (one.upper_ns >= 1000 ? 2 : 0) + (one.upper_ns >= 70'000 ? 1 : 0));
    }
    edge = one.upper_ns;
    before = one.at_most;
  }
  CHECK_EQ(edge, std::numeric_limits<Nanoseconds>::max());
  CHECK_EQ(before, 5);
}
