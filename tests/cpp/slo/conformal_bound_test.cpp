#include "slo/conformal_bound.h"

#include <cmath>
#include <limits>
#include <random>

#include "check.h"

using namespace rose;
using namespace rose::slo;

TEST(the_margin_is_the_quantile_of_the_window) {
  ConformalBound bound{{.epsilon = 0.1, .adaptation = 0, .window = 9}};
  for (int i = 1; i <= 9; ++i) bound.observe(1 + i / 10.0);
  CHECK_EQ(bound.margin(), 1.9);  // the ninth of nine: 10 * 0.9
  bound.observe(1.15);            // and 1.1 is forgotten
  CHECK_EQ(bound.margin(), 1.9);
  for (int i = 0; i < 9; ++i) bound.observe(1.2);
  CHECK_EQ(bound.margin(), 1.2);
}

TEST(the_margin_is_never_under_one) {
  ConformalBound bound{{.epsilon = 0.2}};
  for (int i = 0; i < 100; ++i) {
    bound.observe(0.25);
    CHECK(bound.margin() >= 1);
  }
}

TEST(too_few_scores_give_no_bound) {
  ConformalBound bound{{.epsilon = 0.01}};
  CHECK(std::isinf(bound.margin()));
  for (int i = 0; i < 98; ++i) {
    bound.observe(1);
    CHECK(std::isinf(bound.margin()));
  }
  bound.observe(1);
  CHECK_EQ(bound.margin(), 1.0);
  CHECK_EQ(bound.evidence().missing, 100u);
}

TEST(misses_in_a_row_end_the_bound_and_it_comes_back) {
  ConformalBound bound{{.epsilon = 0.05, .adaptation = 0.02, .window = 256}};
  for (int i = 0; i < 256; ++i) bound.observe(1);
  int misses = 0;
  while (std::isfinite(bound.margin())) {
    bound.observe(8);
    CHECK(++misses < 4);
  }
  CHECK(misses > 1);  // one outlier does not end the bound
  const std::uint32_t missing = bound.evidence().missing;
  CHECK(missing > 0 && missing <= 20);  // at most 1 / epsilon
  for (std::uint32_t i = 0; i < missing; ++i) {
    CHECK(std::isinf(bound.margin()));
    bound.observe(1);
  }
  CHECK(std::isfinite(bound.margin()));
}

TEST(of_any_scores_in_a_row_few_exceed_a_bound) {
  std::mt19937 random{97};
  std::uniform_real_distribution<double> uniform{0, 1};
  for (const double epsilon : {0.02, 0.1}) {
    const ConformalConfig config{.epsilon = epsilon, .adaptation = 0.01, .window = 512};
    ConformalBound bound{config};
    std::vector<int> misses{0};
    double score = 1;
    for (int i = 0; i < 4000; ++i) {
      // The worst case: a score just over the bound whenever there is one, and small scores
      // between.
      const bool attacks = std::isfinite(bound.margin()) && uniform(random) < 0.5;
      score = attacks ? bound.margin() * 1.01 : uniform(random);
      misses.push_back(misses.back() + (score > bound.margin() ? 1 : 0));
      bound.observe(score);
    }
    for (const int length : {100, 1000, 4000}) {
      for (int end = length; end <= 4000; end += 7) {
        const auto from = static_cast<std::size_t>(end - length);
        const int within = misses[static_cast<std::size_t>(end)] - misses[from];
        CHECK(within <= epsilon * length + epsilon / config.adaptation + 1);
      }
    }
  }
}

TEST(scores_of_a_disturbance_are_dropped_when_it_is_over) {
  ConformalBound bound{{.epsilon = 0.02, .window = 512}};
  for (int i = 0; i < 200; ++i) bound.observe(1);
  for (int i = 0; i < 40; ++i) bound.observe(8);
  int calm = 0;
  while (!(bound.margin() < 1.5)) {
    bound.observe(1.1);
    CHECK(++calm <= 120);  // 40 of 360 are still more than one in fifty
  }
  CHECK(bound.evidence().scores < 200);
}

TEST(a_few_large_scores_of_the_same_time_stay) {
  ConformalBound bound{{.epsilon = 0.05, .window = 512}};
  std::mt19937 random{5};
  std::lognormal_distribution<double> noise{0, 0.2};
  for (int i = 0; i < 512; ++i) bound.observe(noise(random));
  CHECK(bound.evidence().scores > 256);
}

TEST(a_state_goes_on_as_it_was) {
  std::mt19937 random{71};
  std::lognormal_distribution<double> noise{0, 0.3};
  for (const std::uint32_t window : {1u, 5u, 64u}) {
    const ConformalConfig config{.epsilon = 0.1, .adaptation = 0.05, .window = window};
    ConformalBound bound{config};
    for (int i = 0; i < 37; ++i) bound.observe(noise(random));
    ConformalBound other{config};
    CHECK(other.restore(bound.state(), true).ok());
    for (int i = 0; i < 200; ++i) {
      CHECK_EQ(other.margin(), i < 8 ? std::numeric_limits<double>::infinity() : bound.margin());
      const double score = i < 8 ? 0.5 : noise(random);  // no miss while only one has a bound
      bound.observe(score);
      other.observe(score);
    }
  }
}

TEST(a_state_of_another_window_keeps_the_newest_scores) {
  ConformalBound large{{.epsilon = 0.1, .adaptation = 0, .window = 100}};
  for (int i = 0; i < 150; ++i) large.observe(1 + i);
  for (const std::uint32_t window : {10u, 100u, 1000u}) {
    ConformalBound other{{.epsilon = 0.1, .adaptation = 0, .window = window}};
    CHECK(other.restore(large.state(), true).ok());
    const auto scores = other.state().scores;
    CHECK_EQ(scores.size(), window < 100 ? window : 100u);
    CHECK_EQ(scores.back(), 150.0);
    CHECK_EQ(scores.front(), 151.0 - static_cast<double>(scores.size()));
  }
}

TEST(a_level_of_another_epsilon_starts_anew) {
  ConformalBound bound{{.epsilon = 0.1}};
  CHECK(bound.restore({.level = -0.3, .scores = {1, 2}}, false).ok());
  const double level = bound.state().level;
  CHECK_EQ(level, 0.1);
}

TEST(a_state_that_cannot_be_one_changes_nothing) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  ConformalBound bound{{}};
  bound.observe(3);
  const double before = bound.margin();
  for (const ConformalState& bad :
       {ConformalState{.level = nan, .scores = {}}, ConformalState{.level = 0.6, .scores = {}},
        ConformalState{.level = -1.1, .scores = {}}, ConformalState{.level = 0, .scores = {1, nan}},
        ConformalState{.level = 0, .scores = {-1}}, ConformalState{.level = 0, .scores = {1e13}},
        ConformalState{.level = 0, .scores = std::vector<double>(1025, 1.0)}}) {
    CHECK_EQ(bound.restore(bad, true).code(), Code::kCorrupt);
    CHECK_EQ(bound.margin(), before);
    CHECK_EQ(bound.state().scores.size(), 1u);
  }
}

TEST(what_is_no_ratio_is_told_from_one) {
  CHECK(ConformalBound::is_score(0) && ConformalBound::is_score(1e12));
  for (const double bad : {-1.0, 1.1e12, std::numeric_limits<double>::infinity(),
                           std::numeric_limits<double>::quiet_NaN()}) {
    CHECK(!ConformalBound::is_score(bad));
  }
}
