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

TEST_MAIN()
