#include "slo/quantum.h"

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <thread>
#include <vector>

#include "check.h"

using namespace rose;
using namespace rose::slo;

namespace {

class Listener final : public ServingListener {
 public:
  void busy() noexcept override {
    if (on_busy) on_busy();
  }
  void idle() noexcept override { ++idles; }

  std::function<void()> on_busy;
  int idles{0};
};

// A model that forecasts its prior, with bounds of the same height for every kind of step.
std::shared_ptr<LatencyModel> known_model(LatencyConfig config) {
  config.step_tokens = 400;
  auto made = LatencyModel::create(config);
  CHECK(made.ok());
  std::shared_ptr<LatencyModel> model = made.take();
  for (const double prefill : {0.0, 1.0, 400.0}) {
    const Features step{1, 0, prefill};
    while (model->evidence(step).value().missing > 0) {
      CHECK(model->observe(step, model->forecast(step).value().predicted_ms).ok());
    }
  }
  return model;
}

struct Scene {
  explicit Scene(LogHeader header = {.ttft_ms = 100,
                                     .tpot_ms = 50,
                                     .signal_ms = 1,
                                     .blocking_ms = 90,
                                     .heartbeat_ttl_ns = 1000,
                                     .max_segments = 8}) {
    auto made_log = CertificateLog::create("", header, clock);
    CHECK(made_log.ok());
    log = made_log.take();
    model = known_model({.prior_ms = {10, 0, 0, 0.1, 0}});
    listener = std::make_shared<Listener>();
    serving = std::make_shared<ServingState>(log, listener);
    certifier = std::make_unique<QuantumCertifier>(
        serving, model, log, NextRequest{.largest_step = {}, .largest_chunk = {0, 0, 400}});
    serving->beat();
  }

  std::uint32_t decide(double segment_ms, std::uint32_t outstanding = 0,
                       HarvestMode mode = HarvestMode::kIdle) {
    return certifier
        ->decide({.mode = mode,
                  .close_epoch = 1,
                  .passed = 0,
                  .outstanding = outstanding,
                  .segment_upper_ms = segment_ms})
        .segments;
  }

  std::shared_ptr<ManualClock> clock{std::make_shared<ManualClock>()};
  std::shared_ptr<CertificateLog> log;
  std::shared_ptr<LatencyModel> model;
  std::shared_ptr<Listener> listener;
  std::shared_ptr<ServingState> serving;
  std::unique_ptr<QuantumCertifier> certifier;
};

}  // namespace

TEST(a_quantum_is_the_most_segments_that_fit_both_bounds) {
  Scene scene;  // a further request takes 50 ms, so the first token leaves 49 ms for segments
  CHECK_EQ(scene.decide(1), 8);   // max_segments
  CHECK_EQ(scene.decide(12), 4);  // 4 * 12 + 1 + 50 = 99
  CHECK_EQ(scene.decide(49), 1);  // 49 + 1 + 50 = ttft_ms
  CHECK_EQ(scene.decide(49.1), 0);
  CHECK_EQ(scene.certifier->last_refusal(), QuantumRefusal::kSloAtRisk);
  CHECK_EQ(scene.log->count(RecordKind::kQuantum), 3);

  LogHeader patient = scene.log->header();
  patient.ttft_ms = 1000;
  patient.blocking_ms = 50;
  Scene tight{patient};  // blocking_ms alone: 50 - 1
  CHECK_EQ(tight.decide(7), 7);
  CHECK_EQ(tight.decide(49), 1);
  CHECK_EQ(tight.decide(49.1), 0);
}

TEST(what_is_outstanding_is_part_of_the_quantum) {
  Scene scene;
  CHECK_EQ(scene.decide(12, 3), 4);
  CHECK_EQ(scene.decide(12, 4), 0);
  CHECK_EQ(scene.certifier->last_refusal(), QuantumRefusal::kEnough);
  CHECK_EQ(scene.decide(12, 5), 0);
  CHECK_EQ(scene.certifier->last_refusal(), QuantumRefusal::kSloAtRisk);
}

TEST(a_pending_request_refuses_every_quantum) {
  Scene scene;
  CHECK_EQ(scene.serving->arrived(10), 0);
  CHECK_EQ(scene.serving->arrived(10), 1);
  CHECK_EQ(scene.decide(1), 0);
  CHECK(scene.serving->finished(0));
  CHECK_EQ(scene.decide(1), 0);
  CHECK_EQ(scene.certifier->refused(QuantumRefusal::kServingBusy), 2);
  CHECK_EQ(scene.listener->idles, 0);
  CHECK(scene.serving->finished(1));
  CHECK_EQ(scene.listener->idles, 1);
  CHECK_EQ(scene.decide(1), 8);
  CHECK(!scene.serving->finished(1));
  CHECK_EQ(scene.serving->pending(), 0);
}

TEST(an_expected_request_refuses_every_quantum) {
  Scene scene;
  QuantumQuery query{.mode = HarvestMode::kIdle, .segment_upper_ms = 1};
  CHECK_EQ(scene.certifier->decide(query).segments, 8);
  query.is_request_expected = true;
  CHECK_EQ(scene.certifier->decide(query).segments, 0);
  CHECK_EQ(scene.certifier->last_refusal(), QuantumRefusal::kServingBusy);
}

TEST(an_arrival_counts_before_the_gate_is_told_and_before_it_is_recorded) {
  Scene scene;
  scene.listener->on_busy = [&] {
    CHECK_EQ(scene.serving->pending(), 1);
    CHECK_EQ(scene.log->count(RecordKind::kArrived), 0);
    CHECK_EQ(scene.decide(1), 0);  // a creditor that looks right now
  };
  scene.serving->arrived(10);
  CHECK_EQ(scene.log->count(RecordKind::kArrived), 1);
  CHECK_EQ(scene.log->count(RecordKind::kQuantum), 0);
}

TEST(frozen_host_gets_no_fresh_credit) {
  Scene scene;
  scene.clock->advance(1000);
  CHECK_EQ(scene.decide(1), 8);
  scene.clock->advance(1);
  CHECK_EQ(scene.decide(1), 0);
  CHECK_EQ(scene.certifier->last_refusal(), QuantumRefusal::kNoHeartbeat);
  scene.serving->beat();
  CHECK_EQ(scene.decide(1), 8);

  Scene silent;
  silent.serving = std::make_shared<ServingState>(silent.log, nullptr);
  QuantumCertifier certifier{silent.serving, silent.model, silent.log, {}};
  CHECK_EQ(certifier.decide({.segment_upper_ms = 1}).segments, 0);
  CHECK_EQ(certifier.last_refusal(), QuantumRefusal::kNoHeartbeat);
}

TEST(without_a_record_there_is_no_quantum) {
  Scene scene;
  CHECK(scene.log->close().ok());
  CHECK_EQ(scene.decide(1), 0);
  CHECK_EQ(scene.certifier->last_refusal(), QuantumRefusal::kLogBroken);
}

TEST(a_segment_without_a_length_is_refused) {
  Scene scene;
  CHECK_EQ(scene.decide(0), 0);
  CHECK_EQ(scene.decide(-1), 0);
  CHECK_EQ(scene.decide(std::numeric_limits<double>::quiet_NaN()), 0);
  CHECK_EQ(scene.decide(std::numeric_limits<double>::infinity()), 0);
}

TEST(the_log_never_shows_a_quantum_while_a_request_is_pending) {
  Scene scene;
  std::thread frontend{[&] {
    for (int i = 0; i < 2000; ++i) {
      CHECK(scene.serving->finished(scene.serving->arrived(1)));
    }
  }};
  std::uint64_t quanta = 0;
  for (int i = 0; i < 2000; ++i) {
    {
      // The section stops every append, so these three are one moment of the log.
      CertificateLog::Section section{*scene.log};
      const auto arrived = scene.log->count(RecordKind::kArrived);
      const auto finished = scene.log->count(RecordKind::kFinished);
      CHECK(scene.serving->pending() != 0 || arrived == finished);
    }
    quanta += scene.decide(1) > 0 ? 1 : 0;
  }
  frontend.join();
  CHECK_EQ(scene.log->count(RecordKind::kQuantum), quanta);
}

namespace {

// The scene's next decode step takes 10 ms, and 50 with 400 prompt tokens (39.9 for a sequence that
// decodes already); a token is due after 80.
LogHeader with_slowdown(double slowdown, std::uint32_t without = 0) {
  return {.ttft_ms = 200,
          .tpot_ms = 80,
          .signal_ms = 1,
          .blocking_ms = 150,
          .heartbeat_ttl_ns = 1'000'000'000'000,
          .max_segments = 8,
          .slowdown = slowdown,
          .without = without};
}

constexpr double kUnlimited = std::numeric_limits<double>::infinity();
constexpr Nanoseconds kMs = 1'000'000;

// By default a step takes as long as predicted.
void serve_step(Scene& scene, double actual_ms, double lent_ms = 0, double blocked_ms = 0,
                double slower_ms = 0) {
  StepRecord step{};
  step.predicted_ms = actual_ms - slower_ms;
  step.actual_ms = actual_ms;
  step.lent_ms = lent_ms;
  step.blocked_ms = blocked_ms;
  CHECK(scene.log->append(step));
}

void give_token(Scene& scene, std::uint32_t slot) {
  const std::array<std::uint32_t, 1> slots{slot};
  CHECK_EQ(scene.serving->emitted(slots), 1);
}

}  // namespace

TEST(slack_is_what_is_left_before_the_earliest_token_is_due) {
  Scene scene{with_slowdown(kUnlimited)};
  const auto first = scene.serving->arrived(10);
  CHECK_EQ(scene.decide(1, 0, HarvestMode::kSlack), 0);  // it waits for its first token
  CHECK_EQ(scene.certifier->last_refusal(), QuantumRefusal::kServingBusy);
  give_token(scene, first);
  CHECK_EQ(scene.decide(1, 0, HarvestMode::kIdle), 0);
  // 80 = 1 + 49.9 + quantum
  CHECK_EQ(scene.decide(7, 0, HarvestMode::kSlack), 4);
  scene.clock->advance(20 * kMs);
  CHECK_EQ(scene.decide(7, 0, HarvestMode::kSlack), 1);
  const auto second = scene.serving->arrived(10);
  CHECK_EQ(scene.decide(1, 0, HarvestMode::kSlack), 0);
  give_token(scene, second);
  CHECK_EQ(scene.decide(7, 0, HarvestMode::kSlack), 1);  // the first still waits longest
  give_token(scene, first);
  CHECK_EQ(scene.decide(7, 0, HarvestMode::kSlack), 4);
  scene.clock->advance(20 * kMs);
  give_token(scene, first);
  CHECK_EQ(scene.decide(7, 0, HarvestMode::kSlack), 1);  // now the second does
  CHECK(scene.serving->finished(second));
  CHECK_EQ(scene.decide(7, 0, HarvestMode::kSlack), 4);
  CHECK_EQ(scene.certifier->granted(HarvestMode::kSlack), 6);
}

TEST(slack_without_the_hypothetical_request_reserves_a_decode_step_only) {
  Scene scene{
      with_slowdown(kUnlimited, 1U << static_cast<std::uint32_t>(Mechanism::kHypothetical))};
  give_token(scene, scene.serving->arrived(10));
  CHECK_EQ(scene.decide(12, 0, HarvestMode::kSlack), 5);  // 80 = 1 + 10 + 69
}

TEST(a_committed_batch_leaves_the_chunk_to_the_step_after_it) {
  Scene scene{with_slowdown(kUnlimited)};
  give_token(scene, scene.serving->arrived(10));
  const auto ask = [&](double segment_ms, std::vector<std::uint32_t> slots) {
    return scene.certifier
        ->decide({.mode = HarvestMode::kSlack,
                  .segment_upper_ms = segment_ms,
                  .committed = CommittedBatch{{.decode_sequences = 1}, slots}})
        .segments;
  };
  CHECK_EQ(ask(12, {0}), 5);  // 80 = 1 + 10 + 69
  CHECK_EQ(ask(12, {7, 0, 0}), 5);
  // A batch without the running request is not committed, however many others it has.
  CHECK_EQ(ask(7, {}), 4);
  CHECK_EQ(ask(7, {1, 2}), 4);
  LogHeader hasty = with_slowdown(kUnlimited);
  hasty.ttft_ms = 100;  // 100 = 1 + 10 + 49.9 + 39.1
  Scene late{hasty};
  give_token(late, late.serving->arrived(10));
  const std::array<std::uint32_t, 1> slots{0};
  CHECK_EQ(late.certifier
               ->decide({.mode = HarvestMode::kSlack,
                         .segment_upper_ms = 13,
                         .committed = CommittedBatch{{.decode_sequences = 1}, slots}})
               .segments,
           3);
}

TEST(slack_without_the_margin_takes_predictions_at_their_word) {
  LogHeader header = with_slowdown(kUnlimited);
  const std::array<std::uint32_t, 1> slots{0};
  for (const std::uint32_t without : {0U, 1U << static_cast<std::uint32_t>(Mechanism::kMargin)}) {
    header.without = without;
    Scene scene{header};
    for (int i = 0; i < 200; ++i) CHECK(scene.model->observe({1, 11, 0}, i % 2 == 0 ? 5 : 15).ok());
    give_token(scene, scene.serving->arrived(10));
    const auto segments = scene.certifier
                              ->decide({.mode = HarvestMode::kSlack,
                                        .segment_upper_ms = 66,
                                        .committed = CommittedBatch{{1, 11, 0}, slots}})
                              .segments;
    CHECK_EQ(segments, without == 0 ? 0 : 1);  // 80 = 1 + 66 + 13: a step of 10, not of 15
  }
}

TEST(running_requests_pay_for_rollouts_with_a_share_of_their_steps) {
  Scene scene{with_slowdown(0.25)};
  const auto ask = [&] { return scene.decide(1, 0, HarvestMode::kSlack); };
  give_token(scene, scene.serving->arrived(10));
  CHECK_EQ(ask(), 0);  // it has no budget yet
  CHECK_EQ(scene.certifier->last_refusal(), QuantumRefusal::kBudgetSpent);
  CHECK(!scene.certifier->binding().has_value());
  serve_step(scene, 16);
  CHECK_EQ(ask(), 3);  // 16 / 4 = 3 + 1
  CHECK_EQ(ask(), 0);  // all of it is promised until a STEP reports the cost
  serve_step(scene, 4, 2.5, 0.5);
  CHECK_EQ(ask(), 1);  // 4 + 4 / 4 - 3 = 1 + 1
  // Budget from before a request's first token does not count for it.
  const auto second = scene.serving->arrived(10);
  serve_step(scene, 40);
  give_token(scene, second);
  CHECK_EQ(ask(), 0);
  serve_step(scene, 12);
  CHECK_EQ(ask(), 2);
  CHECK(scene.serving->finished(second));
  CHECK_EQ(ask(), 8);  // 2 + 10 + 3 - 3 = 8 + 1 and a rest
}

TEST(a_step_that_is_slower_after_a_loan_pays_for_that_too) {
  Scene scene{with_slowdown(0.25)};
  const auto ask = [&] { return scene.decide(1, 0, HarvestMode::kSlack); };
  give_token(scene, scene.serving->arrived(10));
  serve_step(scene, 40, 0, 0, 8);  // no loan before it: it was slow by itself
  CHECK_EQ(ask(), 8);              // 40 / 4 = 8 + 1 and a rest
  serve_step(scene, 24, 1, 0, 4);
  CHECK_EQ(ask(), 8);  // 10 + 20 / 4 - 1 - 4 = 10
  serve_step(scene, 24, 1, 0, 12);
  CHECK_EQ(ask(), 0);  // 10 + 12 / 4 - 1 - 12 = 0
  serve_step(scene, 12, 1, 0, -8);
  CHECK_EQ(ask(), 1);  // 12 / 4 - 1 = 1 + 1: faster than forecast earns no more than its time
}

TEST(without_a_slowdown_nothing_is_granted_between_steps) {
  Scene scene{with_slowdown(0)};
  give_token(scene, scene.serving->arrived(10));
  CHECK_EQ(scene.decide(1, 0, HarvestMode::kSlack), 0);
}

TEST(a_request_that_was_prefilled_elsewhere_runs_at_once) {
  Scene scene{with_slowdown(kUnlimited)};
  CHECK_EQ(scene.serving->arrived(10, true), 0);
  CHECK_EQ(scene.serving->waiting(), 0);
  CHECK_EQ(scene.serving->load().running, 1);
  CHECK_EQ(scene.decide(7, 0, HarvestMode::kSlack), 4);
}

TEST(where_prompts_come_prefilled_a_quantum_leaves_room_for_a_token_in_time) {
  LogHeader header = with_slowdown(0);
  header.tpot_ms = 60;
  Scene scene{header};  // a next request takes 50
  CHECK_EQ(scene.decide(12), 8);
  CHECK(scene.serving->finished(scene.serving->arrived(10, true)));
  CHECK_EQ(scene.decide(9), 1);  // 1 + 9 + 50 = 60
  CHECK_EQ(scene.decide(9.5), 0);
}

TEST(a_step_that_outlives_its_requests_is_no_idle_time) {
  Scene scene;
  const auto slot = scene.serving->arrived(10);
  scene.serving->step_began();
  CHECK(scene.serving->finished(slot));
  CHECK_EQ(scene.decide(1), 0);
  CHECK_EQ(scene.certifier->last_refusal(), QuantumRefusal::kServingBusy);
  const int idles = scene.listener->idles;
  CHECK(scene.serving->step_ended());
  CHECK_EQ(scene.listener->idles, idles + 1);  // the creditor is told
  CHECK_EQ(scene.decide(1), 8);
  CHECK(!scene.serving->step_ended());
}

TEST(a_shape_without_evidence_is_refused_and_named) {
  Scene scene;
  auto fresh = LatencyModel::create({.prior_ms = {10, 0, 0, 0.1, 0}, .step_tokens = 400});
  CHECK(fresh.ok());
  std::shared_ptr<LatencyModel> model = fresh.take();
  QuantumCertifier certifier{scene.serving, model, scene.log,
                             NextRequest{.largest_step = {}, .largest_chunk = {0, 0, 400}}};
  const auto ask = [&] { return certifier.decide({.segment_upper_ms = 1}).segments; };
  CHECK_EQ(ask(), 0);
  CHECK_EQ(certifier.last_refusal(), QuantumRefusal::kNoEvidence);
  const Features step{};
  const Features chunk{0, 0, 400};
  while (model->evidence(step).value().missing > 0) CHECK(model->observe(step, 10).ok());
  CHECK_EQ(ask(), 0);
  CHECK_EQ(certifier.last_refusal(), QuantumRefusal::kNoEvidence);
  CHECK(certifier.binding()->shape == BindingShape::kChunk);
  CHECK(std::isinf(certifier.binding()->upper_ms));
  while (model->evidence(chunk).value().missing > 0) CHECK(model->observe(chunk, 50).ok());
  CHECK(ask() > 0);
}

TEST(a_refusal_names_the_term_that_binds) {
  Scene scene;
  CHECK(!scene.certifier->binding().has_value());
  CHECK_EQ(scene.decide(49.1), 0);
  const Binding chunk = *scene.certifier->binding();
  CHECK(chunk.shape == BindingShape::kChunk && chunk.target == BindingTarget::kTtft);
  CHECK_EQ(chunk.predicted_ms, 50.0);
  CHECK_EQ(chunk.upper_ms, 50.0);
  CHECK_EQ(chunk.delay_ms, 50.1);
  CHECK_EQ(chunk.target_ms, 100.0);
  CHECK_EQ(scene.decide(90), 0);
  CHECK(scene.certifier->binding()->shape == BindingShape::kSegment);
  CHECK(scene.certifier->binding()->target == BindingTarget::kBlocking);
}

TEST(time_is_counted_by_what_was_decided) {
  Scene scene;
  const auto pass = [&](Nanoseconds ns) {
    scene.clock->advance(ns);
    scene.serving->beat();
  };
  scene.clock->advance(1);
  scene.serving->beat();
  CHECK_EQ(scene.decide(60), 0);
  pass(2'000'000);
  CHECK_EQ(scene.decide(60), 0);
  pass(3'000'000);
  CHECK_EQ(scene.decide(1), 8);
  CHECK_EQ(scene.certifier->refused_ns(QuantumRefusal::kSloAtRisk), 5'000'000);
  pass(500'000'000);  // no decision for long: the quantum of 8 ms counts, and a silence of 50
  CHECK_EQ(scene.decide(1), 8);
  CHECK_EQ(scene.certifier->granted_ns(), 58'000'000);
}

TEST(a_next_request_brings_the_longest_context) {
  Scene scene{with_slowdown(kUnlimited)};
  const auto model = known_model({.prior_ms = {10, 0, 0.01, 0, 0}});
  QuantumCertifier certifier{scene.serving, model, scene.log,
                             NextRequest{.largest_step = {}, .largest_chunk = {0, 5000, 400}}};
  give_token(scene, scene.serving->arrived(10));
  const auto ask = [&](double segment_ms) {
    return certifier.decide({.mode = HarvestMode::kSlack, .segment_upper_ms = segment_ms}).segments;
  };
  CHECK_EQ(ask(18), 1);  // 80 = 1 + 18 + 60.11: 10 and a hundredth of 5011
  CHECK_EQ(ask(19), 0);
}

TEST(slots_are_reused_and_context_is_counted) {
  Scene scene{with_slowdown(kUnlimited)};
  const auto first = scene.serving->arrived(10);
  const auto second = scene.serving->arrived(20);
  const std::array<std::uint32_t, 3> both{first, second, 77};
  CHECK_EQ(scene.serving->emitted(both), 2);
  CHECK_EQ(scene.serving->load().context_tokens, 32);
  CHECK(scene.serving->finished(first));
  CHECK_EQ(scene.serving->load().context_tokens, 21);
  CHECK_EQ(scene.serving->arrived(5), first);
  CHECK_EQ(scene.serving->waiting(), 1);
  CHECK(scene.serving->finished(first));
  CHECK_EQ(scene.serving->waiting(), 0);
}

TEST(a_request_beyond_the_slots_waits_until_it_ends) {
  Scene scene{with_slowdown(kUnlimited)};
  for (std::uint32_t slot = 0; slot < ServingState::kSlots; ++slot) {
    CHECK_EQ(scene.serving->arrived(1, true), slot);
  }
  const auto beyond = scene.serving->arrived(1);
  CHECK_EQ(beyond, ServingState::kNoSlot);
  CHECK_EQ(scene.decide(1, 0, HarvestMode::kSlack), 0);
  CHECK(scene.serving->finished(beyond));
  CHECK(!scene.serving->finished(beyond));
  CHECK_EQ(scene.serving->waiting(), 0);
}

TEST(tokens_of_many_requests_are_recorded_in_runs) {
  Scene scene{with_slowdown(kUnlimited)};
  std::vector<std::uint32_t> slots;
  for (int i = 0; i < 1000; ++i) slots.push_back(scene.serving->arrived(1));
  CHECK_EQ(scene.serving->emitted(slots), 1000);
  CHECK_EQ(scene.log->count(RecordKind::kTokens), 2);  // 704 slots a record
  const std::array<std::uint32_t, 1> last{900};
  CHECK_EQ(scene.serving->emitted(last), 1);
  CHECK_EQ(scene.log->count(RecordKind::kTokens), 3);
}
