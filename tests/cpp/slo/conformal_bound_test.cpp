#include "slo/conformal_bound.h"

#include <cmath>
#include <limits>
#include <random>

#include "check.h"

using namespace rose;
using namespace rose::slo;

TEST(the_margin_is_the_quantile_of_the_window) {
  ConformalBound bound{{.epsilon = 0.1, .adaptation = 0, .cold_margin = 1, .window = 9}};
  for (int i = 1; i <= 9; ++i) bound.observe(1 + i / 10.0);
  CHECK_EQ(bound.margin(), 1.9);  // the ninth of nine: 10 * 0.9
  bound.observe(1.15);            // and 1.1 is forgotten
  CHECK_EQ(bound.margin(), 1.9);
  for (int i = 0; i < 9; ++i) bound.observe(1.2);
  CHECK_EQ(bound.margin(), 1.2);
}

TEST(the_margin_is_never_under_one) {
  ConformalBound bound{{.epsilon = 0.2, .cold_margin = 1}};
  for (int i = 0; i < 100; ++i) {
    bound.observe(0.25);
    CHECK(bound.margin() >= 1);
  }
}

TEST(a_small_window_is_no_evidence_for_less_than_the_cold_margin) {
  ConformalBound bound{{.epsilon = 0.01, .cold_margin = 2}};
  CHECK_EQ(bound.margin(), 2.0);
  for (int i = 0; i < 98; ++i) {
    bound.observe(1);
    CHECK_EQ(bound.margin(), 2.0);
  }
  for (int i = 0; i < 10; ++i) bound.observe(1);
  CHECK_EQ(bound.margin(), 1.0);
}

TEST(misses_in_a_row_reach_beyond_the_window) {
  ConformalBound bound{{.epsilon = 0.05, .adaptation = 0.05, .cold_margin = 1, .window = 64}};
  double score = 1;
  for (int i = 0; i < 4; ++i) bound.observe(score *= 2);
  CHECK_EQ(bound.margin(), 1.5 * score);
}

TEST(a_storm_of_misses_is_forgotten) {
  ConformalBound bound{{.epsilon = 0.1, .adaptation = 0.1, .cold_margin = 1, .window = 64}};
  double score = 1;
  for (int i = 0; i < 40; ++i) bound.observe(score *= 1.6);  // more than any window foresees
  for (int i = 0; i < 64; ++i) bound.observe(1);             // the window is calm again
  CHECK_EQ(bound.margin(), 1.0);
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
      CHECK_EQ(other.margin(), bound.margin());
      const double score = noise(random);
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
    other.observe(1000);
    const auto after = other.state().scores;
    CHECK_EQ(after.back(), 1000.0);
  }
}

TEST(a_level_of_another_epsilon_starts_anew) {
  ConformalBound bound{{.epsilon = 0.1}};
  CHECK(bound.restore({.level = 0.3, .scores = {1, 2}}, false).ok());
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
        ConformalState{.level = -0.2, .scores = {}}, ConformalState{.level = 0, .scores = {1, nan}},
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

TEST_MAIN()
