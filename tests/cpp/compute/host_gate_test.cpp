#include "compute/host_gate.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <random>
#include <thread>

#include "check.h"

using namespace rose;
using namespace rose::compute;

namespace {

constexpr Nanoseconds kLongNs = 200'000'000'000;

std::unique_ptr<HostGate> make_gate(std::shared_ptr<const Clock> clock, std::uint32_t first = 0) {
  auto gate = HostGate::create(std::move(clock), first);
  CHECK(gate.ok());
  return gate.take();
}

std::unique_ptr<HostGate> make_gate() { return make_gate(std::make_shared<BootClock>()); }

void open_with(HostGate& gate, std::uint32_t segments) {
  gate.grant(segments);
  CHECK(gate.open(gate.close_epoch()));
}

// Runs a body when the gate reads the clock. The gate does so between announcing a segment and its
// last look at the gate word, where a close is most critical.
class PlantedClock final : public Clock {
 public:
  Nanoseconds now_ns() const noexcept override {
    const auto body = std::exchange(body_, nullptr);
    if (body) body();
    return 1;
  }
  void plant(std::function<void()> body) { body_ = std::move(body); }

 private:
  mutable std::function<void()> body_;
};

}  // namespace

TEST(no_segment_starts_after_a_visible_close) {
  const auto clock = std::make_shared<PlantedClock>();
  const auto gate = make_gate(clock);
  open_with(*gate, 8);
  clock->plant([&] { gate->close(CloseReason::kArrival); });
  CHECK_EQ(gate->pass(1), Verdict::kTimedOut);
  CHECK_EQ(gate->passed(), 0);
  CHECK(!gate->is_running());
}

TEST(a_waiter_woken_while_a_segment_withdraws_does_not_hang) {
  const auto clock = std::make_shared<PlantedClock>();
  const auto gate = make_gate(clock);
  open_with(*gate, 1);
  std::thread serving;
  clock->plant([&] {
    gate->close(CloseReason::kArrival);
    serving = std::thread{[&] { CHECK(gate->wait_parked(kLongNs).has_value()); }};
    // Long enough that the waiter often sleeps on `running`; the law holds either way.
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  CHECK_EQ(gate->pass(1), Verdict::kTimedOut);
  serving.join();
}

TEST(nothing_runs_between_a_close_with_its_wait_and_the_next_opening) {
  const auto gate = make_gate();
  std::atomic<bool> serving{false};
  std::atomic<bool> in_segment{false};
  std::atomic<bool> done{false};
  std::thread borrower{[&] {
    for (;;) {
      in_segment.store(false);
      if (gate->pass(kLongNs) != Verdict::kPassed) break;
      in_segment.store(true);
      CHECK(!serving.load());
    }
    in_segment.store(false);
    done.store(true);
  }};
  std::mt19937 random{11};
  for (int round = 0; round < 3000; ++round) {
    open_with(*gate, static_cast<std::uint32_t>(1 + random() % 6));
    for (auto spin = random() % 300; spin > 0; --spin) (void)gate->is_running();
    gate->close(CloseReason::kArrival);
    CHECK(gate->wait_parked(kLongNs).has_value());
    serving.store(true);
    const std::uint32_t passed = gate->passed();
    for (int spin = 0; spin < 50; ++spin) CHECK(!in_segment.load());
    CHECK_EQ(gate->passed(), passed);
    serving.store(false);
  }
  gate->shut_down();
  borrower.join();
  CHECK(done.load());
}

TEST(no_wake_up_is_lost_between_a_grant_and_a_waiting_borrower) {
  const auto gate = make_gate();
  open_with(*gate, 0);
  constexpr std::uint32_t kRounds = 3000;
  std::thread borrower{[&] {
    for (std::uint32_t i = 0; i < kRounds; ++i) CHECK_EQ(gate->pass(kLongNs), Verdict::kPassed);
    gate->leave();
  }};
  for (std::uint32_t i = 0; i < kRounds; ++i) {
    gate->grant(1);
    while (gate->passed() == i) std::this_thread::yield();
  }
  borrower.join();
  CHECK_EQ(gate->passed(), kRounds);
}

TEST(credit_is_at_most_one_quantum) {
  const auto gate = make_gate();
  CHECK(gate->open(0));
  CHECK_EQ(gate->pass(1), Verdict::kTimedOut);  // open, but without credit
  gate->grant(3);
  gate->grant(3);
  gate->grant(1);
  CHECK_EQ(gate->credit_left(), 3);
  for (int i = 0; i < 3; ++i) CHECK_EQ(gate->pass(1), Verdict::kPassed);
  CHECK_EQ(gate->pass(1), Verdict::kTimedOut);
  CHECK_EQ(gate->passed(), 3);
}

TEST(credit_without_an_open_gate_starts_nothing) {
  const auto gate = make_gate();
  gate->grant(4);
  CHECK_EQ(gate->pass(1), Verdict::kTimedOut);
  CHECK_EQ(gate->passed(), 0);
}

TEST(counters_wrap_without_a_gap) {
  const auto gate = make_gate(std::make_shared<BootClock>(), 0xFFFFFFFEU);
  open_with(*gate, 4);
  for (int i = 0; i < 4; ++i) CHECK_EQ(gate->pass(1), Verdict::kPassed);
  CHECK_EQ(gate->passed(), 2);
  CHECK_EQ(gate->credit_left(), 0);
  CHECK_EQ(gate->pass(1), Verdict::kTimedOut);
  gate->grant(1);
  CHECK_EQ(gate->pass(1), Verdict::kPassed);
}

TEST(an_opening_from_before_a_close_fails) {
  const auto gate = make_gate();
  const std::uint32_t epoch = gate->close_epoch();
  gate->close(CloseReason::kArrival);
  gate->close(CloseReason::kRevocation);  // closing a closed gate is a new epoch as well
  CHECK_EQ(gate->close_epoch(), epoch + 2);
  CHECK(!gate->open(epoch));
  CHECK(!gate->open(epoch + 1));
  CHECK(!gate->is_open());
  CHECK(gate->open(epoch + 2));
  CHECK(gate->open(epoch + 2));
  CHECK_EQ(gate->close_reason(), CloseReason::kRevocation);
}

TEST(an_abort_ends_the_step_at_its_next_gate_and_is_used_up) {
  const auto gate = make_gate();
  CHECK(!gate->abort_step());  // no step
  open_with(*gate, 4);
  gate->begin_step();
  CHECK_EQ(gate->pass(1), Verdict::kPassed);
  CHECK(gate->abort_step());
  CHECK(gate->abort_step());
  CHECK_EQ(gate->pass(1), Verdict::kAborted);
  CHECK(!gate->is_running());
  CHECK_EQ(gate->pass(1), Verdict::kPassed);
  CHECK(gate->abort_step());
  gate->end_step();
  CHECK(!gate->abort_step());
  gate->begin_step();  // a request for the previous step says nothing about this one
  CHECK_EQ(gate->pass(1), Verdict::kPassed);
  gate->end_step();
  CHECK_EQ(gate->stats().aborts, 1);
}

TEST(an_abort_reaches_a_parked_step) {
  const auto gate = make_gate();
  gate->begin_step();
  std::thread borrower{[&] { CHECK_EQ(gate->pass(kLongNs), Verdict::kAborted); }};
  CHECK(gate->abort_step());
  borrower.join();
  CHECK(!gate->is_open());
}

TEST(a_shut_down_gate_lets_everybody_go) {
  const auto gate = make_gate();
  std::thread borrower{[&] { CHECK_EQ(gate->pass(kLongNs), Verdict::kShutDown); }};
  gate->shut_down();
  borrower.join();
  gate->grant(4);
  CHECK(!gate->open(gate->close_epoch()));
  CHECK_EQ(gate->pass(kLongNs), Verdict::kShutDown);
}

TEST(a_wait_for_a_running_segment_ends_at_its_deadline) {
  const auto gate = make_gate();
  open_with(*gate, 1);
  CHECK_EQ(gate->pass(1), Verdict::kPassed);
  gate->close(CloseReason::kArrival);
  CHECK(!gate->wait_parked(1'000'000).has_value());
  gate->leave();
  CHECK(gate->wait_parked(1'000'000).has_value());
}

TEST(a_pause_lasts_from_the_close_to_the_end_of_the_segment_it_caught) {
  const auto clock = std::make_shared<ManualClock>();
  const auto gate = make_gate(clock);
  open_with(*gate, 4);
  CHECK_EQ(gate->pass(1), Verdict::kPassed);
  clock->advance(10'000);
  CHECK_EQ(gate->pass(1), Verdict::kPassed);
  clock->advance(3'000);
  gate->close(CloseReason::kArrival);
  clock->advance(1'000);
  gate->close(CloseReason::kArrival);  // the pause began with the first
  clock->advance(1'000);
  CHECK_EQ(gate->pass(1), Verdict::kTimedOut);
  const GateStats stats = gate->stats();
  CHECK_EQ(stats.segments.count, 2);
  CHECK_EQ(stats.segments.max_ns, 10'000);
  CHECK_EQ(stats.pause_latency.count, 1);
  CHECK_EQ(stats.pause_latency.max_ns, 2'000);
  CHECK_EQ(stats.pauses, 1);
  const auto durations = gate->drain_segments();
  CHECK_EQ(durations.size(), 2);
  CHECK_EQ(durations[1], 5'000);
}

TEST(two_mappings_are_one_gate_and_other_files_are_none) {
  const auto gate = make_gate();
  auto other = HostGate::attach(gate->fd(), std::make_shared<BootClock>());
  CHECK(other.ok());
  open_with(*gate, 1);
  CHECK_EQ(other.value()->pass(1), Verdict::kPassed);
  CHECK(gate->is_running());
  gate->close(CloseReason::kArrival);
  CHECK_EQ(other.value()->pass(1), Verdict::kTimedOut);

  auto zeros = create_memfd("zeros", sizeof(GatePage));
  CHECK(zeros.ok());
  CHECK(!HostGate::attach(zeros.value(), std::make_shared<BootClock>()).ok());
  auto large = create_memfd("large", 4096);
  CHECK(!HostGate::attach(large.value(), std::make_shared<BootClock>()).ok());
}

TEST(what_the_borrower_measures_is_seen_at_the_other_end) {
  const auto clock = std::make_shared<ManualClock>();
  const auto gate = make_gate(clock);
  auto other = HostGate::attach(gate->fd(), clock);
  CHECK(other.ok());
  open_with(*gate, 2);
  CHECK_EQ(other.value()->pass(1), Verdict::kPassed);
  clock->advance(3'000);
  other.value()->leave();
  CHECK_EQ(gate->recent_segment_ns(1.0), 3'000);
  CHECK_EQ(gate->stats().segments.count, 1);
  CHECK_EQ(gate->drain_segments().size(), 1);
}

TEST(a_renewed_gate_holds_nobody_up_and_the_next_borrower_starts_afresh) {
  const auto gate = make_gate();
  open_with(*gate, 4);
  gate->begin_step();
  CHECK_EQ(gate->pass(1), Verdict::kPassed);
  std::thread serving{[&] { CHECK(gate->wait_parked(60'000'000'000).has_value()); }};
  auto old = HostGate::attach(gate->fd(), std::make_shared<BootClock>());
  CHECK(gate->renew().ok());
  serving.join();
  CHECK(!gate->is_open());
  CHECK(!gate->is_running());
  CHECK(!gate->is_in_step());
  CHECK_EQ(gate->credit_left(), 0);
  CHECK(gate->close_reason() == CloseReason::kBorrowerGone);

  auto next = HostGate::attach(gate->fd(), std::make_shared<BootClock>());
  CHECK_EQ(next.value()->pass(1), Verdict::kTimedOut);
  open_with(*gate, 1);
  // The previous borrower has only the old page.
  old.value()->shut_down();
  CHECK(!gate->is_shut_down());
  CHECK_EQ(next.value()->pass(1), Verdict::kPassed);
}

// A page is replaced under serving's thread, the creditor's and readers. None of them waits for a
// dead borrower, and no opening that was decided by an old page takes effect.
TEST(a_gate_is_renewed_under_those_who_use_it) {
  const auto gate = make_gate();
  std::atomic<bool> is_over{false};
  std::thread serving{[&] {
    while (!is_over.load()) {
      gate->close(CloseReason::kArrival);
      CHECK(gate->wait_parked(kLongNs).has_value());
      gate->abort_step();
    }
  }};
  std::thread creditor{[&] {
    while (!is_over.load()) {
      const std::scoped_lock one_decides{gate->granting()};
      const std::uint32_t epoch = gate->close_epoch();
      if (gate->set_credit(gate->passed() + 1)) gate->open(epoch);
    }
  }};
  std::thread reader{[&] {
    while (!is_over.load()) {
      CHECK(gate->stats().segments.count <= 1);
      CHECK(gate->drain_segments().size() <= 1);
      CHECK(gate->recent_segment_ns(0.5) >= 0);
    }
  }};
  std::uint32_t passed = 0;
  for (int round = 0; round < 300; ++round) {
    auto borrower = HostGate::attach(gate->fd(), std::make_shared<BootClock>());
    borrower.value()->begin_step();
    // It dies in a segment, or between two.
    if (borrower.value()->pass(100'000) == Verdict::kPassed) ++passed;
    CHECK(gate->renew().ok());
    CHECK(!gate->is_in_step());
    CHECK_EQ(gate->passed(), passed);
  }
  is_over.store(true);
  serving.join();
  creditor.join();
  reader.join();
  gate->shut_down();
  CHECK(gate->renew().ok());
  CHECK(gate->is_shut_down());
  CHECK(!gate->open(gate->close_epoch()));
}
