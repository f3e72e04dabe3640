#include "scheduler/risk.h"

#include <cstdint>
#include <random>
#include <vector>

#include "check.h"

using namespace rose;
using namespace rose::scheduler;

namespace {

constexpr Nanoseconds kMs = 1'000'000;
constexpr Nanoseconds kS = 1'000'000'000;
constexpr Settings kSettings{.hazard_per_s = 0.1,
                             .hazard_prior_s = 10,
                             .hazard_window_s = 100,
                             .hold_min_ns = 10 * kMs,
                             .hold_max_ns = 70 * kMs,
                             .flap_window_ns = 1000 * kMs,
                             .exposure_max_s = 2,
                             .urgent_share_max = 0.5};

TEST(rate_is_the_prior_until_something_is_seen_and_what_is_seen_in_the_end) {
  Revocations seen;
  CHECK_EQ(seen.per_s(0.1, 10), 0.1);
  for (int i = 0; i < 5; ++i) seen.expose(2, 1e9);
  CHECK_EQ(seen.per_s(0.1, 10), 0.05);
  seen.count = 9;
  CHECK_EQ(seen.per_s(0.1, 10), 0.5);
}

TEST(what_was_seen_long_ago_fades) {
  Revocations seen{.count = 100, .exposed_s = 100};
  for (int i = 0; i < 1000; ++i) seen.expose(1, 100);
  CHECK_EQ(seen.exposed_s, 100.0);
  CHECK(seen.count < 0.1);
}

TEST(clock_that_stands_still_exposes_nobody) {
  HazardTable hazards{kSettings};
  hazards.begin(7, 0, kS);
  for (int i = 0; i < 100; ++i) hazards.expose(7, 0, kS);
  CHECK_EQ(hazards.per_s(7, 0), 0.1);
}

TEST(time_without_a_grant_is_not_counted) {
  HazardTable hazards{kSettings};
  hazards.begin(7, 0, 0);
  hazards.revoke(7, 0, 10 * kS);
  hazards.end(7);
  const double per_s = hazards.per_s(7, 0);
  hazards.expose(7, 0, 1000 * kS);
  CHECK_EQ(hazards.per_s(7, 0), per_s);
  hazards.begin(7, 0, 1000 * kS);
  CHECK_EQ(hazards.per_s(7, 0), per_s);
}

TEST(hold_doubles_from_the_second_revocation_on_and_is_bounded) {
  HazardTable hazards{kSettings};
  hazards.begin(7, 0, 0);
  std::vector<Nanoseconds> holds;
  for (int i = 0; i < 100; ++i) {
    hazards.revoke(7, 0, i * kMs);
    if (i < 6) holds.push_back(hazards.hold_until_ns(7, i * kMs) - i * kMs);
  }
  CHECK(holds == (std::vector<Nanoseconds>{0, 10 * kMs, 20 * kMs, 40 * kMs, 70 * kMs, 70 * kMs}));
  CHECK_EQ(hazards.hold_until_ns(7, 100 * kMs), 170 * kMs);
  CHECK_EQ(hazards.hold_until_ns(7, 5000 * kMs), 5000 * kMs);  // long ago
  CHECK_EQ(hazards.hold_until_ns(8, 5 * kMs), 5 * kMs);
}

TEST(sums_of_exposure_are_those_of_the_domains) {
  std::mt19937_64 random{2};
  ExposureTable table{kSettings};
  std::vector<std::vector<Exposed>> plain(3, std::vector<Exposed>(4));
  for (int round = 0; round < 2000; ++round) {
    const std::size_t job = random() % 3;
    const std::size_t domain = random() % 4;
    const Exposed more{.tokens = static_cast<std::int64_t>(random() % 100),
                       .urgent = static_cast<std::int64_t>(random() % 2),
                       .prefill_tokens_per_s = static_cast<std::int64_t>(random() % 9)};
    const std::int64_t sign = random() % 3 == 0 ? -1 : 1;
    plain[job][domain].add(more, sign);
    sign > 0 ? table.add(job, domain, more) : table.remove(job, domain, more);
    std::int64_t tokens = 0;
    for (std::size_t d = 0; d < 4; ++d) tokens += plain[job][d].tokens;
    CHECK_EQ(table.all(job).tokens, tokens);
    CHECK_EQ(table.of(job, domain).urgent, plain[job][domain].urgent);
  }
  CHECK_EQ(table.of(9, 9).tokens, 0);
}

TEST(turn_joins_a_domain_up_to_what_survivors_compute_in_time) {
  ExposureTable table{kSettings};
  table.add(0, 0, {.prefill_tokens_per_s = 100});
  CHECK(table.can_join(0, 0, 1e9, true));  // nowhere else to be
  table.add(0, 1, {.prefill_tokens_per_s = 50});
  CHECK(table.can_join(0, 0, 1e9, false));  // nobody there
  table.add(0, 0, {.tokens = 60});
  CHECK(table.can_join(0, 0, 40, false));
  CHECK(!table.can_join(0, 0, 41, false));
  CHECK_EQ(table.seconds(0, 0), 1.2);
  CHECK(table.can_join(0, 1, 200, false));
  CHECK(table.can_join(1, 0, 1e9, false));  // another job
}

TEST(urgent_turns_take_a_share_of_a_domain) {
  ExposureTable table{kSettings};
  table.add(0, 0, {.prefill_tokens_per_s = 1'000'000});
  table.add(0, 1, {.prefill_tokens_per_s = 1'000'000});
  table.add(0, 0, {.tokens = 1, .urgent = 1});
  CHECK(!table.can_join(0, 0, 1, true));
  CHECK(table.can_join(0, 0, 1, false));
  CHECK(table.can_join(0, 1, 1, true));
  table.add(0, 1, {.tokens = 1, .urgent = 1});
  CHECK(table.can_join(0, 0, 1, true));
}

}  // namespace
