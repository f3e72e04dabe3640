#include "coserving/certified_creditor.h"

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "scene.h"

using namespace rose;
using namespace rose::test;

namespace {

// A request arrives after the certificate, and before the gate opens.
class ArrivalAfterDecision final : public CreditPolicy {
 public:
  ArrivalAfterDecision(std::shared_ptr<CreditPolicy> policy, std::shared_ptr<ServingState> state)
      : policy_{std::move(policy)}, state_{std::move(state)} {}
  CreditDecision decide(const CreditRequest& request) noexcept override {
    const CreditDecision decision = policy_->decide(request);
    (void)state_->arrived(10);
    return decision;
  }

 private:
  std::shared_ptr<CreditPolicy> policy_;
  std::shared_ptr<ServingState> state_;
};

// A borrower that runs empty segments, one after another, until it is stopped.
class Borrower {
 public:
  explicit Borrower(std::shared_ptr<HostGate> gate)
      : gate_{std::move(gate)}, thread_{[this] { run(); }} {}
  ~Borrower() {
    is_stopped_.store(true);
    thread_.join();
  }

 private:
  void run() {
    while (!is_stopped_.load()) {
      gate_->begin_step();
      for (int segment = 0; segment < 4; ++segment) (void)gate_->pass(kMs);
      gate_->leave();
      gate_->end_step();
    }
  }

  std::shared_ptr<HostGate> gate_;
  std::atomic<bool> is_stopped_{false};
  std::thread thread_;
};

std::string rejected(const CertifiedCreditorConfig& config) {
  Scene scene;
  return CertifiedCreditor::create(scene.gate, scene.state, known_model(), scene.log, config,
                                   scene.clock)
      .status()
      .message();
}

}  // namespace

TEST(gate_opens_for_the_segments_of_the_recorded_certificate) {
  Scene scene;
  scene.gate->begin_step();
  (void)scene.certified->creditor().look();
  CHECK(scene.gate->is_open());
  const auto records = records_of(*scene.log, scene.file);
  const auto quantum = records.back().as<QuantumRecord>();
  CHECK_EQ(quantum.segments, 4);
  CHECK_EQ(quantum.close_epoch, scene.gate->close_epoch());
  CHECK_EQ(scene.gate->credit_left(), quantum.segments);
}

TEST(without_a_record_the_gate_stays_closed) {
  Scene scene;
  CHECK(scene.log->close().ok());
  scene.gate->begin_step();
  (void)scene.certified->creditor().look();
  CHECK(!scene.gate->is_open());
  CHECK_EQ(scene.certified->certifier().last_refusal(), QuantumRefusal::kLogBroken);
}

TEST(arrival_between_decision_and_opening_fails_the_opening) {
  Scene scene;
  auto certifier =
      std::make_shared<QuantumCertifier>(scene.state, known_model(), scene.log, NextRequest{});
  auto segments = std::make_shared<SegmentEvidence>(scene.gate, scene.log, scene.clock,
                                                    Scene::config().segments);
  auto policy =
      std::make_shared<CertifiedPolicy>(scene.gate, certifier, segments, kMs, Asker::kCreditor);
  Creditor creditor{scene.gate,
                    std::make_shared<ArrivalAfterDecision>(policy, scene.state),
                    scene.clock,
                    {.max_segments = 4}};
  scene.gate->begin_step();
  (void)creditor.look();
  CHECK_EQ(certifier->granted(HarvestMode::kIdle), 1);
  CHECK_EQ(creditor.overtaken(), 1);
  CHECK(!scene.gate->is_open());
}

TEST(frozen_host_stops_rollouts_within_a_quantum) {
  LogHeader header = kIdleOnly;
  header.heartbeat_ttl_ns = 100 * kMs;
  const auto clock = std::make_shared<ManualClock>();
  Scene scene{header, clock};
  scene.gate->begin_step();
  (void)scene.certified->creditor().look();
  clock->advance(101 * kMs);
  std::uint32_t started = 0;
  while (scene.gate->pass(0) == Verdict::kPassed) {
    ++started;
    (void)scene.certified->creditor().look();
  }
  CHECK_EQ(started, header.max_segments);
  CHECK_EQ(scene.certified->certifier().last_refusal(), QuantumRefusal::kNoHeartbeat);
  scene.state->beat();
  (void)scene.certified->creditor().look();
  CHECK_EQ(scene.gate->pass(0), Verdict::kPassed);
}

TEST(no_segment_starts_while_a_request_is_live) {
  Scene scene{kIdleOnly, std::make_shared<BootClock>()};
  CHECK(scene.certified->start().ok());
  const Borrower borrower{scene.gate};
  for (int request = 0; request < 50; ++request) {
    const std::uint32_t passed = scene.gate->passed();
    while (scene.gate->passed() == passed) std::this_thread::yield();  // it runs between requests
    const std::uint32_t slot = scene.state->arrived(10);
    CHECK(scene.gate->wait_parked(60'000 * kMs).has_value());
    const std::uint32_t parked = scene.gate->passed();
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
    CHECK_EQ(scene.gate->passed(), parked);
    CHECK(scene.state->finished(slot));
  }
  scene.certified->stop();
}

TEST(before_step_lends_slack_under_certificates_then_closes) {
  Scene scene{with_slack(), std::make_shared<BootClock>()};
  const std::vector slots{scene.running_request()};
  const Borrower borrower{scene.gate};
  const CommittedBatch batch{.features = {1, 10, 0}, .slots = slots};
  while (scene.certified->certifier().granted(HarvestMode::kSlack) == 0) {
    const std::uint32_t before = scene.gate->passed();
    const std::uint32_t epoch = scene.gate->close_epoch();
    const Nanoseconds lent_ns = scene.certified->before_step(batch);
    CHECK(!scene.gate->is_open());
    CHECK(scene.gate->close_epoch() != epoch);
    const std::uint32_t started = scene.gate->passed() - before;
    CHECK_EQ(lent_ns > 0, scene.certified->certifier().granted(HarvestMode::kSlack) > 0);
    CHECK(started <= 4 * scene.certified->certifier().granted(HarvestMode::kSlack));
    CHECK(scene.gate->wait_parked(60'000 * kMs).has_value());
    CHECK_EQ(scene.state->emitted(slots), 1);
  }
  for (const LoggedRecord& record : records_of(*scene.log, scene.file)) {
    if (record.kind == RecordKind::kQuantum) CHECK_EQ(record.as<QuantumRecord>().committed, 1);
  }
}

TEST(without_slack_before_step_only_closes) {
  Scene scene;
  scene.gate->begin_step();
  (void)scene.running_request();
  const std::uint32_t epoch = scene.gate->close_epoch();
  CHECK(!scene.certified->lends_slack());
  CHECK_EQ(scene.certified->before_step(std::nullopt), 0);
  CHECK(!scene.certified->offer(std::nullopt).has_value());
  // A new epoch although the gate was closed, so that an opening decided earlier fails.
  CHECK(!scene.gate->open(epoch));
  CHECK_EQ(scene.gate->close_reason(), CloseReason::kArrival);
}

TEST(certify_records_a_certificate_and_opens_nothing) {
  Scene scene{with_slack()};
  scene.gate->begin_step();
  CHECK_EQ(scene.certified->certify(), 4);
  CHECK_EQ(scene.log->count(RecordKind::kQuantum), 1);
  CHECK(!scene.gate->is_open());
  CHECK_EQ(scene.gate->credit_left(), 0);
}

TEST(after_stop_nothing_is_offered_until_start) {
  Scene scene{with_slack()};
  scene.gate->begin_step();
  const std::vector slots{scene.running_request()};
  const CommittedBatch batch{.features = {1, 10, 0}, .slots = slots};
  scene.certified->stop();
  CHECK(!scene.certified->offer(batch).has_value());
  CHECK(scene.certified->start().ok());
  CHECK(!scene.certified->start().ok());
  const auto offer = scene.certified->offer(batch);
  CHECK(offer.has_value());
  CHECK_EQ(scene.gate->credit_left(), offer->segments);
  scene.certified->withdraw();
  CHECK(!scene.gate->is_open());
}

TEST(limits_out_of_range_are_rejected) {
  CertifiedCreditorConfig config = Scene::config();
  config.segments.prior_ms = 0;
  CHECK_EQ(rejected(config), "segment_prior_ms must be > 0, got 0");
  config = Scene::config();
  config.segments.share = 1.5;
  CHECK_EQ(rejected(config), "segment_share must lie in (0, 1], got 1.5");
  config = Scene::config();
  config.poll_ns = 0;
  CHECK_EQ(rejected(config), "poll_ms must be > 0, got 0");
}
