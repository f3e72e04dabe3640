#include "scheduler/outlook.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "check.h"
#include "scheduler/fates.h"
#include "scheduler/freshness.h"
#include "scheduler/life_line.h"
#include "scheduler/predictor.h"

using namespace rose;
using namespace rose::scheduler;

namespace {

constexpr Nanoseconds kS = 1'000'000'000;

Settings settings() {
  Settings made;
  made.turn_tokens_prior = 100;
  made.turns_prior = 4;
  made.token_s_prior = 0.01;
  made.tool_s_prior = 1;
  made.job_weight = 2;
  made.turn_window = 64;
  made.version_window = 4;
  made.reserve_quantile = 0.9;
  made.longest_first = 1;
  return made;
}

// ---- Predictor

TEST(a_group_is_forgotten_with_its_last_live_member) {
  Predictor predictor{settings()};
  predictor.enter(5);
  predictor.enter(5);
  predictor.leave(5);
  CHECK_EQ(predictor.groups(), 1);
  predictor.leave(5);
  CHECK_EQ(predictor.groups(), 0);
  predictor.leave(5);  // of no live member
  CHECK_EQ(predictor.groups(), 0);
}

TEST(forecasts_are_finite_after_any_observations) {
  std::mt19937_64 random{11};
  Predictor predictor{settings()};
  for (int i = 0; i < 3000; ++i) {
    const auto tokens = static_cast<std::int64_t>(random() >> (24 + random() % 40));
    predictor.enter(i % 7);
    predictor.observe_turn(i % 7, tokens, static_cast<double>(random() % 100));
    predictor.observe_tool(i % 7, static_cast<double>(random() % 1000) / 10);
    predictor.observe_trajectory(i % 7, tokens, static_cast<std::int64_t>(random() % 50));
    const LengthForecast got = predictor.forecast(i % 9, {tokens, tokens, i % 60});
    CHECK(std::isfinite(got.left_s_high) && got.left_s >= 0);
    CHECK(got.left_s_high >= got.left_s);
    CHECK(got.turn_tokens_left > 0);
    CHECK(got.turn_tokens_high > static_cast<double>(tokens));
  }
}

// ---- LifeLine

double exact(std::vector<double> lives_s, std::size_t percent) {
  std::sort(lives_s.begin(), lives_s.end());
  return lives_s[((lives_s.size() - 1) * percent + (percent == 50 ? 0 : 99)) / 100];
}

TEST(equal_lifetimes_have_no_lag) {
  LifeLine line;
  for (int i = 0; i < 9; ++i) line.enter(3);
  CHECK_EQ(line.lag(3), 0.0);
  CHECK_EQ(line.lag(4), 0.0);
}

TEST(quantiles_are_those_of_the_live_trajectories) {
  std::mt19937_64 random{4};
  LifeLine line;
  std::vector<std::pair<std::size_t, double>> live;
  for (int i = 0; i < 4000; ++i) {
    const auto life_s = static_cast<double>(random() % 1000);
    const std::size_t which = live.empty() ? 0 : random() % live.size();
    switch (live.empty() ? 0 : random() % 3) {
      case 0:
        live.emplace_back(line.enter(life_s), life_s);
        break;
      case 1:
        line.change(live[which].first, life_s);
        live[which].second = life_s;
        break;
      default:
        line.leave(live[which].first);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
    }
    CHECK_EQ(line.size(), live.size());
    if (live.empty()) continue;
    // After as many changes as lives the quantiles are computed again.
    for (const auto& [number, each_s] : live) line.change(number, each_s);
    std::vector<double> lives_s;
    for (const auto& [number, each_s] : live) lives_s.push_back(each_s);
    const double median_s = exact(lives_s, 50);
    const double high_s = exact(lives_s, 95);
    CHECK_EQ(line.lag(median_s), 0.0);
    if (high_s > median_s) CHECK_EQ(line.lag(high_s), 1.0);
    if (high_s > median_s) CHECK(line.lag((median_s + high_s) / 2) < 1);
  }
}

// ---- TrainerClock and freshness

TEST(an_overdue_version_counts_as_due_now) {
  TrainerClock clock{4};
  CHECK_EQ(clock.versions_in(1e9, 0), 0.0);
  clock.publish(1, 10 * kS);
  CHECK_EQ(clock.versions_in(1e9, 10 * kS), 0.0);
  clock.publish(1, 20 * kS);
  CHECK_EQ(clock.version_s(), 10.0);
  CHECK_EQ(clock.versions_in(9, 20 * kS), 0.0);
  CHECK_EQ(clock.versions_in(10, 20 * kS), 1.0);
  CHECK_EQ(clock.versions_in(29, 25 * kS), 3.0);
  // An hour late: one version is due, the others follow at the usual interval.
  CHECK_EQ(clock.versions_in(5, 3600 * kS), 1.0);
  CHECK_EQ(clock.versions_in(10, 3600 * kS), 2.0);
}

TEST(the_interval_follows_the_trainer) {
  TrainerClock clock{4};
  Nanoseconds now_ns = 0;
  for (int i = 0; i < 50; ++i) clock.publish(1, now_ns += 10 * kS);
  CHECK_EQ(clock.version_s(), 10.0);
  for (int i = 0; i < 50; ++i) clock.publish(2, now_ns += 40 * kS);
  CHECK(std::abs(clock.version_s() - 20) < 0.01);
}

TEST(freshness_is_safe_at_risk_or_lost) {
  TrainerClock clock{4};
  CHECK(freshness(clock, 0, 1e9, 1e9, 0) == Freshness::kSafe);  // nothing is known
  clock.publish(1, 0);
  clock.publish(1, 10 * kS);
  const Nanoseconds now_ns = 10 * kS;
  CHECK(freshness(clock, 1, 5, 19, now_ns) == Freshness::kSafe);
  CHECK(freshness(clock, 1, 5, 20, now_ns) == Freshness::kAtRisk);
  CHECK(freshness(clock, 1, 20, 20, now_ns) == Freshness::kLost);
  CHECK(freshness(clock, 0, 5, 9, now_ns) == Freshness::kSafe);
  CHECK(freshness(clock, -1, 1, 1, now_ns) == Freshness::kLost);
}

// ---- Fates

TEST(each_bin_of_lengths_is_twice_as_wide_as_the_one_before) {
  OutputLengthCounts lengths;
  for (const std::int64_t tokens : {0L, 1L, 2L, 3L, 4L, 1L << 41, 1L << 60}) lengths.add(tokens);
  CHECK_EQ(lengths.counts()[0], 1);
  CHECK_EQ(lengths.counts()[1], 1);
  CHECK_EQ(lengths.counts()[2], 2);
  CHECK_EQ(lengths.counts()[3], 1);
  CHECK_EQ(lengths.counts()[OutputLengthCounts::kBins - 1], 2);
  CHECK_EQ(lengths.count(), 7);
}

}  // namespace
