#include "slo/latency_model.h"

#include <cmath>
#include <limits>
#include <random>
#include <thread>

#include "check.h"

using namespace rose;
using namespace rose::slo;

namespace {

std::unique_ptr<LatencyModel> make_model(const LatencyConfig& config = {}) {
  auto model = LatencyModel::create(config);
  CHECK(model.ok());
  return model.take();
}

Features random_step(std::mt19937& random) {
  std::uniform_real_distribution<double> uniform{0, 1};
  return {.decode_sequences = std::floor(uniform(random) * 32),
          .context_tokens = std::floor(uniform(random) * 8000),
          .prefill_tokens = uniform(random) < 0.3 ? std::floor(uniform(random) * 512) : 0};
}

double true_ms(const Features& f) {
  return 2 + 0.05 * f.decode_sequences + 2e-4 * f.context_tokens + 0.02 * f.prefill_tokens +
         1e-6 * f.prefill_tokens * f.context_tokens;
}

}  // namespace

TEST(a_model_that_saw_nothing_says_its_prior_and_promises_nothing) {
  const auto model = make_model({.prior_ms = {1, 0.5, 0.25, 0.125, 0}});
  const auto got = model->forecast({2, 4, 8});
  CHECK(got.ok());
  CHECK_EQ(got.value().predicted_ms, 4.0);
  CHECK(std::isinf(got.value().upper_ms));
  CHECK_EQ(model->coverage(), 1.0);
  const Evidence evidence = model->evidence({2, 4, 8}).value();
  CHECK_EQ(evidence.wanted, 199u);
  CHECK_EQ(evidence.missing, 199u + LatencyModel::kTraining);
}

TEST(the_model_learns_what_steps_cost) {
  const auto model = make_model();
  std::mt19937 random{5};
  for (int i = 0; i < 3000; ++i) {
    const Features step = random_step(random);
    CHECK(model->observe(step, true_ms(step)).ok());
  }
  for (int i = 0; i < 200; ++i) {
    const Features step = random_step(random);
    const double got = model->forecast(step).value().predicted_ms;
    CHECK(std::abs(got - true_ms(step)) < 0.05 * true_ms(step));
  }
}

TEST(steps_after_a_loan_widen_the_bound_and_leave_the_prediction) {
  const auto model = make_model({.prior_ms = {5, 0, 0, 0, 0}});
  constexpr Features kStep{1, 100, 0};
  for (int i = 0; i < 400; ++i) CHECK(model->observe(kStep, 5).ok());
  const Forecast before = model->forecast(kStep).value();
  for (int i = 0; i < 400; ++i) {
    const bool is_after_loan = i % 4 == 0;
    CHECK(model->observe(kStep, is_after_loan ? 6 : 5, is_after_loan).ok());
  }
  const Forecast after = model->forecast(kStep).value();
  CHECK(std::abs(after.predicted_ms - before.predicted_ms) < 1e-6);
  CHECK(before.upper_ms < 6);
  CHECK(after.upper_ms >= 6);
}

TEST(coverage_holds_while_the_machine_drifts) {
  for (const double epsilon : {0.02, 0.1}) {
    const auto model = make_model({.epsilon = epsilon, .adaptation = 0.02});
    std::mt19937 random{17};
    std::lognormal_distribution<double> noise{0, 0.15};
    int misses = 0;
    constexpr int kSteps = 6000;
    for (int i = 0; i < kSteps; ++i) {
      const Features step = random_step(random);
      const double drift = i < 2000 ? 1.0 : 1.0 + (i - 2000) / 2000.0;  // three times slower
      const double actual = true_ms(step) * drift * noise(random);
      const auto before = model->observe(step, actual);
      CHECK(before.ok());
      misses += actual > before.value().upper_ms ? 1 : 0;
    }
    // Three kinds of steps, each with at most epsilon / adaptation + 1 more than its share.
    CHECK(misses < (epsilon + 0.001) * kSteps);
    CHECK(misses > (epsilon - 0.05) * kSteps);
    CHECK(std::abs(model->coverage() - (1 - misses / static_cast<double>(kSteps))) < 1e-9);
  }
}

TEST(the_window_alone_covers_a_machine_that_stays_the_same) {
  const auto model = make_model({.epsilon = 0.1, .adaptation = 0});
  std::mt19937 random{37};
  std::lognormal_distribution<double> noise{0, 0.15};
  for (int i = 0; i < 20000; ++i) {
    const Features step = random_step(random);
    CHECK(model->observe(step, true_ms(step) * noise(random)).ok());
  }
  CHECK(model->coverage() > 0.89 && model->coverage() < 0.92);
}

TEST(the_level_follows_a_machine_that_gets_slower_with_every_step) {
  // Without forgetting the regression lags, so each ratio is above all in the window.
  const auto model = make_model({.epsilon = 0.1, .forgetting = 1, .adaptation = 0.02});
  for (int i = 0; i < 4000; ++i) CHECK(model->observe({1, 100, 0}, 2.0 + i * 0.05).ok());
  CHECK(model->coverage() > 0.88);
}

TEST(bad_input_is_refused_and_changes_nothing) {
  const auto model = make_model();
  const Features good{1, 1, 1};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  const double before = model->forecast(good).value().upper_ms;
  for (const double bad : {nan, inf, -inf, -1.0, 1e10}) {
    CHECK_EQ(model->observe({bad, 0, 0}, 1).status().code(), Code::kInvalidArgument);
    CHECK_EQ(model->observe({0, bad, 0}, 1).status().code(), Code::kInvalidArgument);
    CHECK_EQ(model->forecast({0, 0, bad}).status().code(), Code::kInvalidArgument);
    CHECK_EQ(model->observe(good, bad).status().code(), Code::kInvalidArgument);
  }
  const double after = model->forecast(good).value().upper_ms;
  CHECK_EQ(after, before);
  CHECK_EQ(model->observations(), 0);

  for (const LatencyConfig& bad :
       {LatencyConfig{.prior_ms = {nan, 0, 0, 0, 0}}, LatencyConfig{.prior_ms = {-1, 0, 0, 0, 0}},
        LatencyConfig{.epsilon = 0}, LatencyConfig{.epsilon = nan}, LatencyConfig{.forgetting = 0},
        LatencyConfig{.adaptation = -1}, LatencyConfig{.step_tokens = 0},
        LatencyConfig{.window = 0}, LatencyConfig{.window = 5000}}) {
    CHECK_EQ(LatencyModel::create(bad).status().code(), Code::kInvalidArgument);
  }
}

TEST(forecasts_stay_finite_and_ordered_whatever_is_observed) {
  std::mt19937 random{23};
  std::uniform_real_distribution<double> exponent{-3, 9};
  for (int run = 0; run < 20; ++run) {
    const auto model = make_model({.forgetting = run % 2 == 0 ? 0.9 : 0.998});
    for (int i = 0; i < 500; ++i) {
      const auto wild = [&] {
        return random() % 4 == 0 ? 0.0 : std::min(1e9, std::pow(10, exponent(random)));
      };
      CHECK(model->observe({wild(), wild(), wild()}, wild()).ok());
      const Forecast got = model->forecast({wild(), wild(), wild()}).value();
      CHECK(std::isfinite(got.predicted_ms) && got.predicted_ms > 0);
      CHECK(got.upper_ms >= got.predicted_ms);
    }
  }
}

TEST(steps_with_prefill_and_steps_without_have_margins_of_their_own) {
  const auto model = make_model(
      {.prior_ms = {10, 0, 0, 0, 0}, .epsilon = 0.05, .window = 256, .step_tokens = 512});
  std::mt19937 random{29};
  std::lognormal_distribution<double> small{0, 0.01};
  std::lognormal_distribution<double> large{0, 0.3};
  for (int i = 0; i < 4000; ++i) {
    const double prefill = i % 4 == 0 ? 512 : i % 4 == 1 ? 100 : 0;
    CHECK(model->observe({1, 0, prefill}, 10 * (prefill > 0 ? large : small)(random)).ok());
  }
  const auto margin = [&](double prefill) {
    const Forecast got = model->forecast({1, 0, prefill}).value();
    return got.upper_ms / got.predicted_ms;
  };
  CHECK(margin(0) < 1.1);
  CHECK(margin(100) > 1.3);
  CHECK(margin(512) > 1.3);
}

TEST(a_chunk_near_step_tokens_is_judged_by_its_like) {
  const auto model =
      make_model({.prior_ms = {10, 0, 0, 0, 0}, .epsilon = 0.05, .step_tokens = 1000});
  for (int i = 0; i < 100; ++i) CHECK(model->observe({0, 0, 700}, 10).ok());
  const auto upper_ms = [&](double prefill) {
    return model->forecast({0, 0, prefill}).value().upper_ms;
  };
  CHECK(upper_ms(10) < 11 && upper_ms(749) < 11);
  CHECK(std::isinf(upper_ms(750)) && std::isinf(upper_ms(0)));
  for (int i = 0; i < 100; ++i) CHECK(model->observe({0, 0, 750}, 10).ok());
  CHECK(upper_ms(750) < 11 && upper_ms(2000) < 11);
}

TEST(what_seldom_runs_is_not_forecast_by_noise) {
  // As in an engine, the context grows with the sequences; certificates ask for other mixes.
  const auto cost_ms = [](const Features& f) {
    return 4 + 0.05 * f.decode_sequences + 3e-5 * f.context_tokens + 0.03 * f.prefill_tokens;
  };
  const auto model = make_model({.prior_ms = {5, 0.1, 0, 0.05, 0}, .step_tokens = 512});
  std::mt19937 random{61};
  std::lognormal_distribution<double> noise{0, 0.1};
  std::uniform_real_distribution<double> near{0.98, 1.02};
  for (int i = 0; i < 8000; ++i) {
    const auto sequences = static_cast<double>(1 + random() % 63);
    const double prefill = random() % 5 == 0 ? static_cast<double>(1 + random() % 512) : 0;
    const Features step{sequences, 500 * sequences * near(random), prefill};
    CHECK(model->observe(step, cost_ms(step) * noise(random)).ok());
    if (i < 1000) continue;
    for (const Features& asked :
         {Features{1, 30'000, 0}, Features{0, 30'000, 512}, Features{64, 64'000, 0}}) {
      const double ratio = model->forecast(asked).value().upper_ms / cost_ms(asked);
      CHECK(ratio > 0.9 && (ratio < 3 || std::isinf(ratio)));
    }
  }
}

TEST(what_was_learned_is_forgotten_when_the_machine_is_another) {
  const auto model = make_model();
  std::mt19937 random{73};
  for (int i = 0; i < 22'000; ++i) {
    const Features step = random_step(random);
    CHECK(model->observe(step, true_ms(step) * (i < 20'000 ? 1 : 2)).ok());
  }
  const Features step{16, 4000, 0};
  CHECK(model->forecast(step).value().predicted_ms > 1.8 * true_ms(step));
}

TEST(a_prior_that_is_far_too_high_is_left_within_a_window) {
  const auto model = make_model({.prior_ms = {1000, 10, 0, 5, 0}});
  std::mt19937 random{67};
  for (int i = 0; i < 500; ++i) {
    const Features step = random_step(random);
    CHECK(model->observe(step, true_ms(step)).ok());
  }
  const Forecast got = model->forecast({16, 4000, 0}).value();
  CHECK(got.predicted_ms < 1.5 * true_ms({16, 4000, 0}));
}

TEST(a_restored_model_goes_on_to_the_last_bit_once_it_is_confirmed) {
  const LatencyConfig config{.epsilon = 0.05, .adaptation = 0.001, .window = 64};
  const auto model = make_model(config);
  std::mt19937 random{53};
  std::lognormal_distribution<double> noise{0, 0.2};
  const auto observe = [&](LatencyModel& one, const Features& step, double actual_ms) {
    const auto got = one.observe(step, actual_ms);
    CHECK(got.ok());
    return got.value();
  };
  for (int i = 0; i < 700; ++i) {
    const Features step = random_step(random);
    observe(*model, step, true_ms(step) * noise(random));
  }
  auto restored = LatencyModel::restore(config, model->state());
  CHECK(restored.ok());
  const auto other = restored.take();
  CHECK_EQ(other->observations(), 700u);
  CHECK_EQ(other->coverage(), model->coverage());
  for (int i = 0; i < 700; ++i) {
    const Features step = random_step(random);
    const double actual_ms = true_ms(step) * noise(random);
    const Forecast one = observe(*model, step, actual_ms);
    const Forecast two = observe(*other, step, actual_ms);
    CHECK_EQ(one.predicted_ms, two.predicted_ms);
    CHECK(i < 100 || one.upper_ms == two.upper_ms);
  }
}

TEST(a_state_that_no_model_has_is_corrupt) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto model = make_model();
  CHECK(model->observe({1, 1, 1}, 5).ok());
  const auto refused = [&](auto change) {
    LatencyState state = model->state();
    change(state);
    return LatencyModel::restore({}, state).status().code() == Code::kCorrupt;
  };
  CHECK(!refused([](LatencyState&) {}));
  CHECK(refused([&](LatencyState& state) { state.weights[2] = nan; }));
  CHECK(refused([&](LatencyState& state) { state.weights[2] = -1; }));
  CHECK(refused([&](LatencyState& state) { state.covariance[1][1] = 0; }));
  CHECK(refused([&](LatencyState& state) { state.covariance[1][2] += 1; }));
  CHECK(refused([&](LatencyState& state) { state.covariance[3][3] = nan; }));
  CHECK(refused([&](LatencyState& state) { state.bounds[1].level = 1; }));
  CHECK(refused([&](LatencyState& state) { state.bounds[2].scores = {nan}; }));
  CHECK(refused([](LatencyState& state) { state.step_tokens = 0; }));
  CHECK(refused([](LatencyState& state) { state.seen[0] = 1; }));
  CHECK(refused([&](LatencyState& state) { state.observations = 0; }));
  CHECK(refused([&](LatencyState& state) { state.misses = 2; }));
}

TEST(one_thread_observes_while_another_asks) {
  const auto model = make_model();
  std::thread serving{[&] {
    for (int i = 0; i < 2000; ++i) CHECK(model->observe({1, 10, 0}, 3).ok());
  }};
  for (int i = 0; i < 2000; ++i) CHECK(model->forecast({0, 0, 512}).value().upper_ms > 0);
  serving.join();
  CHECK_EQ(model->observations(), 2000);
}
