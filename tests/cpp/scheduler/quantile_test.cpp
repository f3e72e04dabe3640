#include "scheduler/quantile.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "check.h"
#include "scheduler/events.h"

using namespace rose;
using namespace rose::scheduler;

namespace {

constexpr std::int64_t kMany = 1 << 20;

TEST(bins_are_adjacent_and_at_most_an_eighth_of_their_lengths_wide) {
  CHECK_EQ(bin_of(0), 0);
  CHECK_EQ(bin_of(kCountMax), kBinsMax - 1);
  CHECK_EQ(bin_of(kCountMax + 5), kBinsMax - 1);
  CHECK_EQ(bin_of(-3), 0);
  for (std::size_t bin = 0; bin < kBinsMax; ++bin) {
    const std::int64_t begin = bin_begin(bin);
    const std::int64_t end = bin_begin(bin + 1);
    CHECK(end > begin);
    CHECK(8 * (end - begin) <= std::max<std::int64_t>(8, begin));
    if (begin <= kCountMax) CHECK_EQ(bin_of(begin), bin);
    if (end - 1 <= kCountMax) CHECK_EQ(bin_of(end - 1), bin);
  }
}

// Heavy-tailed like turns: most are short, and some take as long as all others together.
std::vector<std::int64_t> heavy(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random{seed};
  std::vector<std::int64_t> lengths;
  for (std::size_t i = 0; i < count; ++i) {
    const double u = static_cast<double>(random() % 1'000'000 + 1) / 1'000'001;
    lengths.push_back(static_cast<std::int64_t>(20 * std::pow(u, -1.2)));
  }
  return lengths;
}

// The exact quantile of the rest of lengths above `given`: the smallest rest that a share q does
// not exceed.
double exact_left(std::vector<std::int64_t> lengths, std::int64_t given, double q) {
  std::erase_if(lengths, [&](std::int64_t length) { return length <= given; });
  std::sort(lengths.begin(), lengths.end());
  const double rank = std::ceil(q * static_cast<double>(lengths.size()));
  return static_cast<double>(lengths[static_cast<std::size_t>(rank) - 1] - given);
}

TEST(quantiles_of_the_remaining_length_err_by_less_than_a_bin) {
  for (const std::size_t count : {1U, 2U, 31U, 1000U}) {
    const std::vector<std::int64_t> lengths = heavy(count, count);
    Sketch sketch{kMany};
    for (const std::int64_t length : lengths) sketch.observe(length);
    const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
    for (const std::int64_t given : {0L, 15L, 40L, 333L, 5000L}) {
      // Only above the first length of a bin: within a bin the rest is estimated.
      const std::int64_t edge = bin_begin(bin_of(given)) - 1;
      if (edge < 0 || edge >= longest) continue;
      const Left left = left_of(nullptr, sketch, 1, edge, 0.5, 0.9);
      for (const auto& [got, q] : {std::pair{left.low, 0.5}, std::pair{left.high, 0.9}}) {
        const double due = exact_left(lengths, edge, q) + static_cast<double>(edge);
        CHECK(std::abs(got + static_cast<double>(edge) - due) <= due / 8);
      }
      CHECK(left.low >= 1);
      CHECK(left.high >= left.low);
    }
  }
}

TEST(short_lengths_are_exact) {
  Sketch sketch{kMany};
  for (std::int64_t length = 1; length <= 10; ++length) sketch.observe(length);
  const Left all = left_of(nullptr, sketch, 1, 0, 0.5, 0.9);
  CHECK_EQ(all.low, 5.0);
  CHECK_EQ(all.high, 9.0);
  CHECK_EQ(all.mean, 5.5);
  const Left rest = left_of(nullptr, sketch, 1, 6, 0.5, 0.9);
  CHECK_EQ(rest.low, 2.0);
  CHECK_EQ(rest.high, 4.0);
  CHECK_EQ(rest.mean, 2.5);
}

TEST(beyond_all_observed_lengths_the_median_remaining_length_is_the_given_length) {
  Sketch sketch{kMany};
  sketch.observe(10);
  const Left left = left_of(nullptr, sketch, 1, 1000, 0.5, 0.9);
  CHECK_EQ(left.low, 1000.0);
  CHECK_EQ(left.mean, 1000.0);
  CHECK(std::abs(left.high - 9000.0) < 1e-6);
  CHECK(left_of(nullptr, Sketch{1}, 1, kCountMax, 0.5, 1).high <= static_cast<double>(kCountMax));
}

TEST(in_a_heavy_tail_the_remaining_length_grows) {
  Sketch sketch{kMany};
  for (const std::int64_t length : heavy(20'000, 3)) sketch.observe(length);
  double before = 0;
  for (const std::int64_t given : {15, 127, 1023}) {
    const Left left = left_of(nullptr, sketch, 1, given, 0.5, 0.9);
    CHECK(left.low > before);
    before = left.low;
  }
}

TEST(a_groups_own_observations_count_in_full) {
  Sketch near{kMany};
  Sketch far{kMany};
  for (int i = 0; i < 1000; ++i) far.observe(5);
  near.observe(10);
  near.observe(10);
  CHECK_EQ(left_of(&near, far, 2, 0, 0.5, 0.75).mean, 7.5);
  CHECK_EQ(left_of(&near, far, 2, 0, 0.5, 0.75).low, 5.0);
  CHECK_EQ(left_of(&near, far, 2, 0, 0.5, 0.75).high, 10.0);
  near.observe(10);
  CHECK_EQ(left_of(&near, far, 2, 0, 0.5, 0.75).low, 10.0);
  // Only members were ever longer than that.
  CHECK_EQ(left_of(&near, far, 2, 5, 0.5, 0.75).low, 5.0);
}

TEST(old_lengths_are_forgotten_and_memory_is_bounded) {
  Sketch sketch{64};
  for (int i = 0; i < 1000; ++i) sketch.observe(1000);
  for (int i = 0; i < 1000; ++i) {
    sketch.observe(7);
    CHECK(sketch.total() <= 64);
    CHECK(i < 64 || sketch.total() >= 31);
  }
  CHECK_EQ(left_of(nullptr, sketch, 1, 0, 0.5, 0.99).high, 7.0);
  std::mt19937_64 random{5};
  for (int i = 0; i < 10'000; ++i) {
    sketch.observe(static_cast<std::int64_t>(random() >> (random() % 64)));
  }
  CHECK(sketch.weights().size() <= kBinsMax);
  double sum = 0;
  for (const double weight : sketch.weights()) sum += weight;
  CHECK(std::abs(sum - sketch.total()) < 1e-9);
}

TEST(an_assumption_is_one_exponential_observation) {
  Sketch sketch{kMany};
  sketch.assume(10'000);
  CHECK(std::abs(sketch.total() - 1) < 1e-12);
  const Left left = left_of(nullptr, sketch, 1, 0, 0.5, 0.9);
  CHECK(std::abs(left.mean - 10'000) < 700);
  CHECK(left.low > 5000 && left.low < 8000);
  CHECK(left.high > 20'000);
}

}  // namespace
