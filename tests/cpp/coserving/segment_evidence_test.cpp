#include "coserving/segment_evidence.h"

#include <algorithm>

#include "check.h"
#include "scene.h"

using namespace rose;
using namespace rose::test;

namespace {

constexpr Nanoseconds kSecond = 1'000 * kMs;

// Targets with room for segments of 88 ms beside steps of 10 ms, and waits that end soon.
constexpr LogHeader short_waits() {
  LogHeader header = kIdleOnly;
  header.blocking_ms = 1000;
  header.ttft_ms = 100;
  header.park_wait_ms = 20;
  header.wait_budget_ns = 50 * kMs;
  return header;
}

// The borrower's step, and segments of a length that a test sets.
struct Segments : Scene {
  explicit Segments(const LogHeader& header = short_waits())
      : Scene{header},
        time{const_cast<ManualClock*>(static_cast<const ManualClock*>(clock.get()))} {
    gate->begin_step();
  }

  QuantumRefusal ask() {
    (void)certified->creditor().look();
    return certified->certifier().last_refusal();
  }
  // Runs a segment, for which the gate must be open.
  void run(Nanoseconds length_ns) {
    begin();
    time->advance(length_ns);
    gate->leave();
    gate->close(CloseReason::kStep);
  }
  void begin() { CHECK(gate->try_pass() == Verdict::kPassed); }
  double upper_ms() { return certified->segments().length().upper_ms; }
  std::uint64_t trials() { return certified->certifier().granted(HarvestMode::kTrial); }
  // Asks every 10 ms; returns the time until the next trial was granted.
  Nanoseconds until_trial() {
    const std::uint64_t before = trials();
    const Nanoseconds from_ns = time->now_ns();
    while (trials() == before) {
      time->advance(10 * kMs);
      state->beat();
      (void)ask();
    }
    return time->now_ns() - from_ns;
  }

  ManualClock* time;
};

}  // namespace

TEST(certificate_has_the_measured_length_however_long_ago_it_was_measured) {
  Segments scene;
  CHECK_EQ(scene.upper_ms(), 1.0);  // the prior
  CHECK_EQ(scene.ask(), QuantumRefusal::kNone);
  scene.run(900 * kMs);
  CHECK_EQ(scene.upper_ms(), 900.0);
  CHECK_EQ(scene.ask(), QuantumRefusal::kSegmentTooLong);
  const SegmentLimit limit = scene.certified->certifier().segment_limit().value();
  CHECK_EQ(limit.measured_ms, 900.0);
  CHECK_EQ(limit.limit_ms, 89.0);
  scene.time->advance(3600 * kSecond);
  CHECK_EQ(scene.upper_ms(), 900.0);
  CHECK(scene.gate->renew().ok());  // The next borrower's page has no measurements.
  CHECK_EQ(scene.upper_ms(), 900.0);
}

TEST(trials_come_after_pauses_that_double_up_to_ten_minutes) {
  Segments scene;
  CHECK_EQ(scene.ask(), QuantumRefusal::kNone);
  scene.run(900 * kMs);
  CHECK_EQ(scene.ask(), QuantumRefusal::kSegmentTooLong);
  for (Nanoseconds pause_ns = kSecond; pause_ns < 5000 * kSecond; pause_ns *= 2) {
    const Nanoseconds waited_ns = scene.until_trial();
    const Nanoseconds expected_ns = std::min(pause_ns, SegmentEvidence::kTrialMaxNs);
    CHECK(waited_ns > expected_ns - 2 * kSecond && waited_ns < expected_ns + kSecond);
    CHECK_EQ(scene.gate->credit_left(), 1);
    scene.run(900 * kMs);
  }
}

TEST(short_trial_ends_the_refusals) {
  Segments scene;
  CHECK_EQ(scene.ask(), QuantumRefusal::kNone);
  scene.run(900 * kMs);
  CHECK_EQ(scene.ask(), QuantumRefusal::kSegmentTooLong);
  (void)scene.until_trial();
  scene.run(5 * kMs);
  CHECK_EQ(scene.upper_ms(), 5.0);
  CHECK_EQ(scene.ask(), QuantumRefusal::kNone);
}

TEST(trial_that_never_began_is_followed_by_another) {
  Segments scene;
  CHECK_EQ(scene.ask(), QuantumRefusal::kNone);
  scene.run(900 * kMs);
  CHECK_EQ(scene.ask(), QuantumRefusal::kSegmentTooLong);
  (void)scene.until_trial();
  scene.gate->close(CloseReason::kArrival);
  CHECK(scene.until_trial() < 3 * kSecond);
}

TEST(trial_needs_the_wait_that_it_can_cause_in_the_budget) {
  Segments scene;
  CHECK_EQ(scene.ask(), QuantumRefusal::kNone);
  scene.begin();
  scene.gate->close(CloseReason::kArrival);
  for (int wait = 0; wait < 2; ++wait) (void)scene.certified->segments().wait(1);
  const Nanoseconds left_ns = scene.log->header().wait_budget_ns - scene.log->wait_spent_ns();
  CHECK_EQ(left_ns, (50 - 18 - 20) * kMs);  // the certificate allowed 2 ms of the first wait
  scene.time->advance(900 * kMs);
  scene.gate->leave();
  CHECK_EQ(scene.ask(), QuantumRefusal::kSegmentTooLong);
  for (int second = 0; second < 595; ++second) {
    scene.time->advance(kSecond);
    scene.state->beat();
    (void)scene.ask();
  }
  CHECK_EQ(scene.trials(), 0);
  CHECK(scene.until_trial() < 10 * kSecond);  // The waits are ten minutes old.
}

TEST(wait_that_serving_measured_counts_whatever_the_page_says) {
  Segments scene;
  CHECK_EQ(scene.ask(), QuantumRefusal::kNone);
  scene.begin();
  scene.gate->close(CloseReason::kArrival);
  const SegmentWait wait = scene.certified->segments().wait(1);
  CHECK(!wait.has_ended);
  CHECK_EQ(wait.waited_ns, 20 * kMs);
  CHECK_EQ(wait.excess_ns, 18 * kMs);
  scene.time->advance(kMs / 10);
  scene.gate->leave();  // The page says 0.1 ms.
  CHECK_EQ(scene.upper_ms(), 20.0);
  scene.time->advance(6 * kSecond);
  CHECK_EQ(scene.ask(), QuantumRefusal::kNone);
  scene.run(3 * kMs);  // a newer segment
  CHECK_EQ(scene.upper_ms(), 3.0);
}

TEST(wait_that_timed_out_never_lowers_the_length) {
  Segments scene;
  CHECK_EQ(scene.ask(), QuantumRefusal::kNone);
  scene.run(900 * kMs);
  scene.gate->set_credit(scene.gate->passed() + 1);
  CHECK(scene.gate->open(scene.gate->close_epoch()));
  scene.begin();
  scene.gate->close(CloseReason::kArrival);
  CHECK(!scene.certified->segments().wait(1).has_ended);
  CHECK_EQ(scene.upper_ms(), 900.0);
}

TEST(no_wait_exceeds_certificate_and_budget_together) {
  Segments scene;
  CHECK_EQ(scene.ask(), QuantumRefusal::kNone);
  scene.begin();
  scene.gate->close(CloseReason::kArrival);
  Nanoseconds sum_ns = 0;
  SegmentWait wait;
  for (int number = 0; number < 5; ++number) {
    wait = scene.certified->segments().wait(1);
    sum_ns += wait.excess_ns;
  }
  CHECK_EQ(sum_ns, 50 * kMs);
  CHECK(wait.is_spent);
  CHECK_EQ(wait.waited_ns, 0);
  const auto records = records_of(*scene.log, scene.file);
  CHECK_EQ(records.back().as<WaitedRecord>().left_ns, 0);
}

TEST(one_quantum_covers_one_wait_until_the_next_step) {
  Segments scene;
  CHECK_EQ(scene.ask(), QuantumRefusal::kNone);
  CHECK_EQ(scene.log->begin_wait().certified_ns, 2 * kMs);
  CHECK_EQ(scene.log->begin_wait().certified_ns, 0);
  scene.gate->close(CloseReason::kStep);
  CHECK_EQ(scene.ask(), QuantumRefusal::kNone);
  CHECK(scene.log->append(StepRecord{}));
  CHECK_EQ(scene.log->begin_wait().certified_ns, 0);
}
