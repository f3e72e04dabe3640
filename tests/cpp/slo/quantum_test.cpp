#include "slo/quantum.h"

#include <functional>
#include <limits>
#include <thread>

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
    auto made_model = LatencyModel::create({.prior_ms = {10, 0, 0, 0.1, 0}, .cold_margin = 1});
    CHECK(made_model.ok());
    model = made_model.take();
    listener = std::make_shared<Listener>();
    serving = std::make_shared<ServingState>(log, listener);
    certifier = std::make_unique<QuantumCertifier>(
        serving, model, log, NextRequest{.largest_step = {}, .largest_chunk = {0, 0, 400}});
    serving->beat();
  }

  std::uint32_t decide(double segment_ms, std::uint32_t outstanding = 0) {
    return certifier->decide({.close_epoch = 1,
                              .passed = 0,
                              .outstanding = outstanding,
                              .segment_upper_ms = segment_ms});
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
  Scene scene;  // a next request takes 50 ms, so the first token leaves 49 ms for segments
  CHECK_EQ(scene.decide(1), 8);   // max_segments
  CHECK_EQ(scene.decide(12), 4);  // 4 * 12 + 1 + 50 = 99
  CHECK_EQ(scene.decide(49), 1);  // 49 + 1 + 50 = ttft_ms
  CHECK_EQ(scene.decide(49.1), 0);
  CHECK_EQ(scene.certifier->last_refusal(), QuantumRefusal::kSloAtRisk);
  CHECK_EQ(scene.log->count(Kind::kQuantum), 3);

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
  scene.serving->arrived(10);
  scene.serving->arrived(10);
  CHECK_EQ(scene.decide(1), 0);
  CHECK(scene.serving->finished());
  CHECK_EQ(scene.decide(1), 0);
  CHECK_EQ(scene.certifier->refused(QuantumRefusal::kServingBusy), 2);
  CHECK_EQ(scene.listener->idles, 0);
  CHECK(scene.serving->finished());
  CHECK_EQ(scene.listener->idles, 1);
  CHECK_EQ(scene.decide(1), 8);
  CHECK(!scene.serving->finished());
  CHECK_EQ(scene.serving->pending(), 0);
}

TEST(an_arrival_counts_before_the_gate_is_told_and_before_it_is_recorded) {
  Scene scene;
  scene.listener->on_busy = [&] {
    CHECK_EQ(scene.serving->pending(), 1);
    CHECK_EQ(scene.log->count(Kind::kArrived), 0);
    CHECK_EQ(scene.decide(1), 0);  // a creditor that looks right now
  };
  scene.serving->arrived(10);
  CHECK_EQ(scene.log->count(Kind::kArrived), 1);
  CHECK_EQ(scene.log->count(Kind::kQuantum), 0);
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
  CHECK_EQ(certifier.decide({.segment_upper_ms = 1}), 0);
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
      scene.serving->arrived(1);
      CHECK(scene.serving->finished());
    }
  }};
  std::uint64_t quanta = 0;
  for (int i = 0; i < 2000; ++i) {
    {
      // The section stops every append, so these three are one moment of the log.
      CertificateLog::Section section{*scene.log};
      const auto arrived = scene.log->count(Kind::kArrived);
      const auto finished = scene.log->count(Kind::kFinished);
      CHECK(scene.serving->pending() != 0 || arrived == finished);
    }
    quanta += scene.decide(1) > 0 ? 1 : 0;
  }
  frontend.join();
  CHECK_EQ(scene.log->count(Kind::kQuantum), quanta);
}

TEST_MAIN()
