#include "coserving/serving_steps.h"

#include <atomic>
#include <limits>
#include <thread>
#include <vector>

#include "check.h"
#include "loans.h"

using namespace rose;
using namespace rose::test;

namespace {

constexpr Features kDecode{1, 10, 0};

struct Serving {
  explicit Serving(const LogHeader& header = kIdleOnly,
                   std::shared_ptr<const Clock> time = std::make_shared<ManualClock>())
      : loans{header, std::move(time)} {
    steps.set_lending(true);
  }

  ManualClock& clock() {
    return const_cast<ManualClock&>(dynamic_cast<const ManualClock&>(*loans.scene.clock));
  }
  // Runs a step of `ms` milliseconds that decodes.
  Result<StepEnded> step(int ms, const Features& batch = kDecode) {
    const StepBegun begun = steps.begin(std::nullopt, true);
    clock().advance(ms * kMs);
    return steps.end({.batch = batch, .began_ns = begun.until_ns, .passed = begun.passed});
  }
  std::vector<LoggedRecord> records() { return records_of(*scene.log, scene.file); }

  Loans loans;
  Scene& scene{loans.scene};
  std::shared_ptr<LatencyModel> model{known_model()};
  std::shared_ptr<SupplyWatch> supply{
      std::make_shared<SupplyWatch>(loans.arbiter, loans.serving, loans.demand, scene.state)};
  ServingSteps steps{{.clock = scene.clock,
                      .gate = scene.gate,
                      .state = scene.state,
                      .model = model,
                      .log = scene.log,
                      .demand = loans.demand,
                      .supply = supply,
                      .creditor = scene.certified}};
};

}  // namespace

TEST(no_idle_quantum_is_certified_in_a_step) {
  Serving serving;
  (void)serving.steps.begin(std::nullopt, true);
  CHECK_EQ(serving.scene.certified->certify(), 0);
  serving.steps.abandon();
  CHECK(serving.scene.certified->certify() > 0);
}

TEST(quantum_certified_before_a_step_cannot_open_the_gate_in_it) {
  Serving serving;
  const std::uint32_t epoch = serving.scene.gate->close_epoch();
  CHECK(serving.scene.certified->certify() > 0);
  (void)serving.steps.begin(std::nullopt, true);
  CHECK(!serving.scene.gate->open(epoch));
}

TEST(step_is_recorded_with_the_forecast_made_before_the_model_learns_from_it) {
  Serving serving;
  const Forecast before = serving.model->forecast(kDecode).take();
  const std::uint64_t observations = serving.model->observations();
  const StepEnded ended = serving.step(17).take();
  CHECK_EQ(ended.actual_ns, 17 * kMs);
  const auto step = serving.records().back().as<StepRecord>();
  CHECK_EQ(step.predicted_ms, before.predicted_ms);
  CHECK_EQ(step.upper_ms, before.upper_ms);
  CHECK_EQ(step.actual_ms, 17.0);
  CHECK_EQ(serving.model->observations(), observations + 1);
  CHECK(serving.model->forecast(kDecode).take().predicted_ms > before.predicted_ms);
}

TEST(model_learns_nothing_from_a_step_beside_a_segment) {
  Serving serving;
  const std::uint64_t observations = serving.model->observations();
  serving.scene.gate->begin_step();
  serving.scene.gate->grant(1);
  CHECK(serving.scene.gate->open(serving.scene.gate->close_epoch()));
  CHECK_EQ(serving.scene.gate->pass(0), Verdict::kPassed);
  const StepBegun begun = serving.steps.begin(std::nullopt, true);
  CHECK(begun.is_blocked);
  CHECK_EQ(begun.passed, 1);
  CHECK(serving.steps.end({.batch = kDecode, .began_ns = begun.until_ns, .passed = 1}).ok());
  CHECK_EQ(serving.model->observations(), observations);
  CHECK_EQ(serving.scene.log->count(RecordKind::kStep), 1);
}

TEST(step_ends_even_if_a_part_fails) {
  Serving serving;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK_EQ(serving.step(1, {nan, 0, 0}).status().code(), Code::kInvalidArgument);
  CHECK(!serving.scene.state->is_in_step());
}

TEST(fast_step_raises_the_demand_that_the_supply_is_compared_with) {
  Serving serving;
  std::int32_t lent = 0;
  while (serving.loans.lend(1) == 1) ++lent;
  CHECK(lent > 0);
  CHECK(!serving.step(10).take().is_short);
  // The largest prompt in a millisecond, again and again: serving can fill more blocks within T.
  bool is_short = false;
  for (int i = 0; i < 200 && !is_short; ++i) {
    (void)serving.scene.state->arrived(10);
    is_short = serving.step(1, {0, 0, 320}).take().is_short;
  }
  CHECK(is_short);
  serving.supply->end();
  CHECK(!serving.step(1).take().is_short);
}

TEST(commit_lends_the_slack_that_the_batch_leaves) {
  Serving serving{with_slack(), std::make_shared<BootClock>()};
  const std::vector slots{serving.scene.running_request()};
  serving.scene.gate->begin_step();
  (void)serving.steps.begin(std::nullopt, false);
  CHECK_EQ(serving.scene.log->count(RecordKind::kQuantum), 0);
  (void)serving.steps.commit(CommittedBatch{.features = kDecode, .slots = slots});
  const auto quantum = serving.records().back().as<QuantumRecord>();
  CHECK_EQ(quantum.mode, HarvestMode::kSlack);
  CHECK_EQ(quantum.committed, 1);
  CHECK(!serving.scene.gate->is_open());
}

TEST(while_lending_is_off_a_step_leaves_the_gate_as_it_is) {
  Serving serving;
  serving.steps.set_lending(false);
  CHECK(serving.scene.gate->open(serving.scene.gate->close_epoch()));
  CHECK(!serving.steps.begin(std::nullopt, true).is_blocked);
  CHECK(serving.scene.gate->is_open());
}

TEST(token_is_a_heartbeat) {
  Serving serving;
  const std::vector slots{serving.scene.state->arrived(10)};
  serving.clock().advance(5 * kMs);
  serving.steps.emitted(slots, false);
  CHECK_EQ(serving.scene.state->heartbeat_age_ns(serving.clock().now_ns()), 0);
  CHECK_EQ(serving.scene.state->waiting(), 0);
}

TEST(many_threads_may_report_tokens_and_ask_for_the_supply_beside_the_steps) {
  Serving serving;
  std::atomic<bool> is_over{false};
  std::vector<std::thread> others;
  for (int i = 0; i < 3; ++i) {
    others.emplace_back([&] {
      while (!is_over.load()) {
        const std::vector slots{serving.scene.state->arrived(10)};
        serving.steps.emitted(slots, false);
        CHECK(serving.supply->is_short(1).ok());
        serving.steps.set_lending(true);
        CHECK(serving.scene.state->finished(slots.front()));
      }
    });
  }
  for (int i = 0; i < 200; ++i) CHECK(serving.step(1).ok());
  is_over.store(true);
  for (std::thread& one : others) one.join();
  CHECK_EQ(serving.scene.log->count(RecordKind::kStep), 200);
}
