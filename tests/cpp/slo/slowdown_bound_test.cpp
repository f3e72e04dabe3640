#include "slo/slowdown_bound.h"

#include <limits>
#include <thread>

#include "check.h"

using namespace rose;
using namespace rose::slo;

namespace {

std::unique_ptr<SlowdownBound> make_bound(const ConformalConfig& config = {}, double prior = 2) {
  auto bound = SlowdownBound::create(config, prior);
  CHECK(bound.ok());
  return bound.take();
}

}  // namespace

TEST(the_prior_speaks_first) {
  CHECK_EQ(make_bound()->upper(), 2.0);
  CHECK_EQ(make_bound({}, 1.5)->upper(), 1.5);
  CHECK_EQ(make_bound()->coverage(), 1.0);
}

TEST(misses_are_counted_against_what_was_promised) {
  const auto bound = make_bound({.epsilon = 0.1, .window = 16}, 1.5);
  CHECK(bound->observe(1.6).ok());  // over 1.5
  CHECK(bound->observe(1.0).ok());
  CHECK_EQ(bound->observations(), 2u);
  CHECK_EQ(bound->coverage(), 0.5);
}

TEST(bad_input_is_refused_and_changes_nothing) {
  const auto bound = make_bound();
  for (const double bad : {-1.0, 1e13, std::numeric_limits<double>::quiet_NaN()}) {
    CHECK_EQ(bound->observe(bad).code(), Code::kInvalidArgument);
  }
  CHECK_EQ(bound->observations(), 0u);
  for (const ConformalConfig& bad :
       {ConformalConfig{.epsilon = 0}, ConformalConfig{.epsilon = 0.5},
        ConformalConfig{.adaptation = -1}, ConformalConfig{.window = 0},
        ConformalConfig{.window = 2000}}) {
    CHECK_EQ(SlowdownBound::create(bad, 2).status().code(), Code::kInvalidArgument);
  }
  CHECK_EQ(SlowdownBound::create({}, 0.5).status().code(), Code::kInvalidArgument);
}

TEST(one_thread_observes_while_another_asks) {
  const auto bound = make_bound();
  std::thread serving{[&] {
    for (int i = 0; i < 2000; ++i) CHECK(bound->observe(1.2).ok());
  }};
  for (int i = 0; i < 2000; ++i) CHECK(bound->upper() >= 1);
  serving.join();
  CHECK_EQ(bound->observations(), 2000u);
}
