#include "scheduler/outlook.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <set>
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

TEST(finished_members_of_a_group_tell_of_the_others) {
  Predictor predictor{settings()};
  for (const GroupId group : {1, 2, 3}) predictor.enter(group);
  for (int i = 0; i < 40; ++i) {
    predictor.observe_trajectory(i % 2 == 0 ? 1 : 2, i % 2 == 0 ? 10'000 : 15, 1);
  }
  const double of_long = predictor.forecast(1, {}).left_s;
  const double of_short = predictor.forecast(2, {}).left_s;
  const double of_unknown = predictor.forecast(3, {}).left_s;
  CHECK(of_long > 10 * of_short);
  CHECK(of_unknown >= of_short && of_unknown <= of_long);
}

TEST(what_was_said_already_is_no_longer_expected) {
  Predictor predictor{settings()};
  predictor.enter(1);
  for (int i = 0; i < 60; ++i) predictor.observe_turn(1, i % 4 == 0 ? 4000 : 15, 1);
  const LengthForecast fresh = predictor.forecast(1, {});
  const LengthForecast old = predictor.forecast(1, {.turn_tokens = 15, .tokens = 15});
  CHECK(fresh.turn_tokens_left < 1500);
  CHECK(old.turn_tokens_left > 3000);
  CHECK(old.turn_tokens_high > 3500);
}

TEST(tools_and_turns_to_come_are_part_of_what_is_left) {
  Predictor predictor{settings()};
  predictor.enter(1);
  for (int i = 0; i < 60; ++i) predictor.observe_trajectory(1, 10, 10);
  const double before_s = predictor.forecast(1, {}).left_s;
  for (int i = 0; i < 600; ++i) predictor.observe_tool(1, 60);
  const double after_s = predictor.forecast(1, {}).left_s;
  CHECK(after_s > before_s + 400);
  CHECK(after_s < before_s + 600);
  CHECK(predictor.forecast(1, {.turns = 9}).left_s < 10);
}

TEST(pace_is_what_turns_took_in_all) {
  Predictor predictor{settings()};
  for (int i = 0; i < 1000; ++i) predictor.observe_turn(1, i % 2 == 0 ? 10 : 1990, i % 2);
  const LengthForecast forecast = predictor.forecast(1, {});
  // 1000 tokens per turn at half a second each; four turns of 100 tokens remain.
  CHECK(forecast.left_s < 0.0006 * 4000 + 4);
}

TEST(group_is_forgotten_with_its_last_live_member) {
  Predictor predictor{settings()};
  predictor.enter(5);
  predictor.enter(5);
  predictor.leave(5);
  CHECK_EQ(predictor.groups(), 1);
  predictor.leave(5);
  CHECK_EQ(predictor.groups(), 0);
  predictor.leave(5);  // nobody is left of it
  CHECK_EQ(predictor.groups(), 0);
}

TEST(forecasts_are_finite_whatever_was_seen) {
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

TEST(lag_goes_from_the_median_to_the_95th_percentile) {
  LifeLine line;
  CHECK_EQ(line.lag(5), 0.0);
  std::vector<double> lives_s;
  for (int i = 0; i < 101; ++i) {
    lives_s.push_back((i * 37) % 101);
    line.enter(lives_s.back());
  }
  CHECK_EQ(line.lag(50), 0.0);
  CHECK_EQ(line.lag(95), 1.0);
  CHECK_EQ(line.lag(1000), 1.0);
  CHECK(std::abs(line.lag(72.5) - 0.5) < 1e-12);
}

TEST(equal_lives_are_nobodys_lag) {
  LifeLine line;
  for (int i = 0; i < 9; ++i) line.enter(3);
  CHECK_EQ(line.lag(3), 0.0);
  CHECK_EQ(line.lag(4), 0.0);
}

TEST(line_is_that_of_those_who_are_live_however_they_came_and_went) {
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
    // After as many changes as lives it looks again.
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

TEST(clock_counts_versions_from_the_last_and_a_late_one_comes_at_once) {
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

TEST(clock_follows_a_trainer_that_changes_its_pace) {
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

TEST(bins_of_lengths_double) {
  OutputLengthCounts lengths;
  for (const std::int64_t tokens : {0L, 1L, 2L, 3L, 4L, 1L << 41, 1L << 60}) lengths.add(tokens);
  CHECK_EQ(lengths.counts()[0], 1);
  CHECK_EQ(lengths.counts()[1], 1);
  CHECK_EQ(lengths.counts()[2], 2);
  CHECK_EQ(lengths.counts()[3], 1);
  CHECK_EQ(lengths.counts()[OutputLengthCounts::kBins - 1], 2);
  CHECK_EQ(lengths.count(), 7);
}

TEST(stale_is_what_was_consumed_too_late) {
  Fates fates;
  CHECK_EQ(fates.length_bias(), 1.0);
  fates.end(100, 0);
  fates.end(200, 3);
  fates.end(300, 2);
  fates.consume(2, 4, 1);
  CHECK_EQ(fates.stale().count(), 1);  // the first: four versions old
  fates.consume(1, 4, 1);
  CHECK_EQ(fates.stale().count(), 2);
  CHECK_EQ(fates.done().count(), 3);
  CHECK_EQ(fates.length_bias(), 200.0 / 200.0);
  fates.drop(800);
  CHECK_EQ(fates.length_bias(), 400.0 / 200.0);
}

// ---- Outlook

TEST(the_longest_counts_as_queued_before_the_shortest_and_whoever_waits_overtakes) {
  Outlook outlook{settings()};
  Trajectory longest;
  Trajectory shortest;
  longest.group = 1;
  shortest.group = 2;
  for (Trajectory* each : {&longest, &shortest}) {
    outlook.create(*each);
    outlook.admit(*each, 0);
  }
  longest.forecast.left_s = 60;
  shortest.forecast.left_s = 10;
  CHECK(outlook.order_ns(longest, 0) < outlook.order_ns(shortest, 0));
  CHECK(outlook.order_ns(longest, 101 * kS) > outlook.order_ns(shortest, 0));
}

TEST(reservation_is_ahead_of_what_was_said_and_never_more_than_what_may_be_said) {
  Outlook outlook{settings()};
  Trajectory trajectory;
  trajectory.context_tokens = 1000;
  trajectory.max_new_tokens = 500;
  trajectory.forecast.turn_tokens_high = 80;
  CHECK_EQ(outlook.reserve_tokens(trajectory, 32), 1080);
  trajectory.known_tokens = 70;
  CHECK_EQ(outlook.reserve_tokens(trajectory, 32), 1102);
  trajectory.known_tokens = 490;
  CHECK_EQ(outlook.reserve_tokens(trajectory, 32), 1500);
  Settings all = settings();
  all.reserve_quantile = 1;
  CHECK_EQ(Outlook{all}.reserve_tokens(trajectory, 32), 1500);
}

}  // namespace
