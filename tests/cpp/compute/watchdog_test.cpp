#include "compute/watchdog.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "compute/creditor.h"

using namespace rose;
using namespace rose::compute;

namespace {

constexpr Nanoseconds kLongNs = 200'000'000'000;
constexpr Nanoseconds kAfterNs = 50'000'000;

class Written final : public ForcedLog {
 public:
  void forced(std::uint32_t passed, std::uint32_t close_epoch) noexcept override {
    all.emplace_back(passed, close_epoch);
    const auto body = std::exchange(meanwhile, nullptr);
    if (body) body();
  }
  std::vector<std::pair<std::uint32_t, std::uint32_t>> all;
  std::function<void()> meanwhile;  // runs between the record and the opening, once
};

// A borrower whose step has run one segment and now waits at its next gate, which serving closed.
struct Scene {
  Scene() {
    gate->grant(1);
    CHECK(gate->open(gate->close_epoch()));
    gate->begin_step();
    CHECK_EQ(gate->try_pass(), Verdict::kPassed);
    gate->close(CloseReason::kArrival);
    CHECK(!gate->try_pass().has_value());
  }

  void pass_time(Nanoseconds by) {
    clock->advance(by);
    (void)watchdog.look();
  }

  // Exactly one segment starts.
  void expect_one_segment() {
    const std::uint32_t before = gate->passed();
    CHECK_EQ(gate->try_pass(), Verdict::kPassed);
    for (int i = 0; i < 3; ++i) CHECK(!gate->try_pass().has_value());
    CHECK_EQ(gate->passed(), before + 1);
  }

  std::shared_ptr<ManualClock> clock{std::make_shared<ManualClock>()};
  std::shared_ptr<HostGate> gate{HostGate::create(clock).take()};
  std::shared_ptr<Written> written{std::make_shared<Written>()};
  Watchdog watchdog{gate, written, clock, kAfterNs};
};

}  // namespace

TEST(nothing_is_let_through_outside_a_declaration) {
  Scene scene;
  for (int i = 0; i < 5; ++i) scene.pass_time(10 * kAfterNs);
  CHECK(!scene.gate->try_pass().has_value());
  scene.watchdog.enter();
  scene.watchdog.leave();
  for (int i = 0; i < 5; ++i) scene.pass_time(10 * kAfterNs);
  CHECK(!scene.gate->try_pass().has_value());
  CHECK(scene.written->all.empty());
  CHECK_EQ(scene.gate->stats().forced_opens, 0);
}

TEST(a_parked_step_gets_one_segment_each_time_nothing_has_moved_for_so_long) {
  Scene scene;
  scene.watchdog.enter();
  CHECK_EQ(scene.watchdog.look(), kAfterNs);
  scene.pass_time(kAfterNs - 1);
  CHECK(!scene.gate->try_pass().has_value());
  for (std::uint32_t forced = 1; forced <= 4; ++forced) {
    scene.pass_time(forced == 1 ? 1 : kAfterNs);
    scene.expect_one_segment();
    (void)scene.watchdog.look();
    CHECK(!scene.gate->is_open());
    CHECK_EQ(scene.gate->close_reason(), CloseReason::kArrival);
    CHECK_EQ(scene.gate->stats().forced_opens, forced);
    CHECK_EQ(scene.written->all.size(), forced);
    CHECK_EQ(scene.written->all.back().first, scene.gate->passed() - 1);
  }
}

TEST(the_time_counts_anew_from_every_segment_that_moves) {
  Scene scene;
  scene.watchdog.enter();
  scene.pass_time(kAfterNs);
  CHECK_EQ(scene.gate->try_pass(), Verdict::kPassed);  // and this segment is long
  for (int i = 0; i < 5; ++i) scene.pass_time(kAfterNs);
  scene.gate->leave();
  scene.pass_time(kAfterNs - 1);
  CHECK(!scene.gate->try_pass().has_value());
  CHECK_EQ(scene.gate->stats().forced_opens, 1);
  scene.pass_time(1);
  scene.expect_one_segment();
}

TEST(an_end_of_the_declaration_takes_back_what_has_not_started) {
  Scene scene;
  scene.watchdog.enter();
  scene.pass_time(kAfterNs);
  CHECK(scene.gate->is_open());
  scene.watchdog.leave();
  CHECK(!scene.gate->is_open());
  CHECK_EQ(scene.gate->close_reason(), CloseReason::kArrival);
  CHECK(!scene.gate->try_pass().has_value());
  scene.watchdog.leave();  // no call was entered, so this changes nothing
  CHECK(!scene.watchdog.is_declared());
}

TEST(declarations_overlap_and_the_last_to_end_counts) {
  Scene scene;
  scene.watchdog.enter();
  scene.watchdog.enter();
  scene.watchdog.leave();
  scene.pass_time(kAfterNs);
  scene.expect_one_segment();
  scene.watchdog.leave();
  scene.pass_time(10 * kAfterNs);
  CHECK(!scene.gate->try_pass().has_value());
}

TEST(a_borrower_that_holds_nothing_is_left_alone) {
  Scene scene;
  scene.gate->end_step();
  scene.watchdog.enter();
  scene.pass_time(10 * kAfterNs);
  // A step that waits for its first segment holds nothing either.
  scene.gate->begin_step();
  CHECK(!scene.gate->try_pass().has_value());
  scene.pass_time(10 * kAfterNs);
  CHECK(!scene.gate->try_pass().has_value());
  CHECK_EQ(scene.gate->stats().forced_opens, 0);
}

TEST(a_borrower_whose_process_is_gone_holds_nothing) {
  Scene scene;
  scene.watchdog.enter();
  CHECK(scene.gate->renew().ok());
  scene.pass_time(10 * kAfterNs);
  CHECK(!scene.gate->is_open());
  CHECK_EQ(scene.gate->stats().forced_opens, 0);
}

TEST(a_segment_that_runs_or_may_start_is_no_deadlock) {
  Scene scene;
  scene.watchdog.enter();
  scene.gate->grant(1);
  CHECK(scene.gate->open(scene.gate->close_epoch()));
  scene.pass_time(10 * kAfterNs);
  CHECK_EQ(scene.gate->stats().forced_opens, 0);
  CHECK(scene.gate->is_open());
  CHECK_EQ(scene.gate->try_pass(), Verdict::kPassed);
  scene.pass_time(10 * kAfterNs);
  CHECK_EQ(scene.gate->stats().forced_opens, 0);
}

TEST(a_gate_that_is_open_without_credit_parks_too) {
  Scene scene;
  scene.gate->grant(1);
  CHECK(scene.gate->open(scene.gate->close_epoch()));
  CHECK_EQ(scene.gate->try_pass(), Verdict::kPassed);
  scene.gate->leave();
  CHECK(scene.gate->is_open());
  scene.watchdog.enter();
  scene.pass_time(kAfterNs);
  scene.expect_one_segment();
  scene.pass_time(kAfterNs);
  scene.watchdog.leave();
  CHECK(!scene.gate->try_pass().has_value());
}

TEST(a_close_that_comes_in_between_wins) {
  Scene scene;
  scene.watchdog.enter();
  scene.written->meanwhile = [&] { scene.gate->close(CloseReason::kArrival); };
  scene.pass_time(kAfterNs);
  CHECK(!scene.gate->is_open());
  CHECK(!scene.gate->try_pass().has_value());
  CHECK_EQ(scene.gate->stats().forced_opens, 0);
  scene.pass_time(kAfterNs - 1);  // and no other opening follows at once
  CHECK_EQ(scene.written->all.size(), 1);
  scene.pass_time(1);
  scene.expect_one_segment();
}

TEST(an_opening_of_somebody_else_is_not_taken_back) {
  Scene scene;
  scene.watchdog.enter();
  scene.pass_time(kAfterNs);
  scene.gate->close(CloseReason::kArrival);
  scene.gate->grant(4);
  CHECK(scene.gate->open(scene.gate->close_epoch()));
  scene.watchdog.leave();
  CHECK(scene.gate->is_open());
}

TEST(credit_that_a_close_left_over_does_not_make_it_more_than_one) {
  Scene scene;
  scene.gate->grant(8);
  scene.watchdog.enter();
  scene.pass_time(kAfterNs);
  scene.expect_one_segment();
}

TEST(a_gate_that_was_shut_down_stays_shut) {
  Scene scene;
  scene.watchdog.enter();
  scene.gate->shut_down();
  scene.pass_time(10 * kAfterNs);
  CHECK_EQ(scene.gate->stats().forced_opens, 0);
  CHECK(scene.written->all.empty());
}

TEST(a_clock_that_goes_back_lets_nothing_through) {
  Scene scene;
  scene.watchdog.enter();
  scene.pass_time(-10 * kAfterNs);
  CHECK_EQ(scene.gate->stats().forced_opens, 0);
  scene.pass_time(kAfterNs);
  CHECK_EQ(scene.gate->stats().forced_opens, 0);  // not yet long enough by this clock
}

// The deadlock itself, with threads: a serving call returns only after the borrower's step, which
// waits at a gate that is closed because serving is busy.
TEST(the_creditors_thread_ends_a_deadlock_of_serving_and_the_borrower) {
  class Refusing final : public CreditPolicy {
   public:
    CreditDecision decide(const CreditRequest&) noexcept override { return {}; }
  };
  const auto clock = std::make_shared<BootClock>();
  const std::shared_ptr<HostGate> gate{HostGate::create(clock).take()};
  const auto watchdog = std::make_shared<Watchdog>(gate, nullptr, clock, 1'000'000);
  Creditor creditor{gate,
                    std::make_shared<Refusing>(),
                    clock,
                    {.max_segments = 4, .poll_ns = 1'000'000},
                    watchdog};
  CHECK(creditor.start().ok());
  gate->grant(1);
  CHECK(gate->open(gate->close_epoch()));
  std::atomic<bool> is_parked{false};
  std::atomic<bool> is_over{false};
  std::thread borrower{[&] {
    gate->begin_step();
    CHECK_EQ(gate->pass(kLongNs), Verdict::kPassed);
    gate->leave();
    gate->close(CloseReason::kArrival);
    is_parked.store(true);
    for (int i = 0; i < 6; ++i) CHECK_EQ(gate->pass(kLongNs), Verdict::kPassed);
    gate->end_step();
    is_over.store(true);
  }};
  while (!is_parked.load()) std::this_thread::yield();
  watchdog->enter();
  while (!is_over.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  watchdog->leave();
  borrower.join();
  creditor.stop();
  CHECK_EQ(gate->stats().forced_opens, 6);
  CHECK(!gate->is_open());
}
