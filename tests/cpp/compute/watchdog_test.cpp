#include "compute/watchdog.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "compute/creditor.h"
#include "compute/fake_device.h"
#include "driver/graph.h"
#include "driver/stream.h"

using namespace rose;
using namespace rose::compute;
using rose::test::fake;

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

// A scene in which serving's streams are on a device, and the watchdog knows them.
struct DeviceScene : Scene {
  DeviceScene() {
    watchdog.watch({.device = device,
                    .streams = {streams[0]->get(), streams[1]->get()},
                    .progress = [this] { return progress; }});
  }
  ~DeviceScene() {
    fake().release(streams[0]->get());
    fake().release(streams[1]->get());
  }

  // Time passes, and the creditor looks as often as it was asked to.
  void pass_time(Nanoseconds by) {
    for (const Nanoseconds end_ns = clock->now_ns() + by; clock->now_ns() < end_ns;) {
      clock->advance(std::min<Nanoseconds>(end_ns - clock->now_ns(), 5'000'000));
      (void)watchdog.look();
    }
  }

  void launch(int stream) {
    event = driver::Event::create(device, false).take();
    fake().hold(streams[stream]->get());
    CHECK(event->record(streams[stream]->get()).ok());
  }

  std::uint64_t progress{1};
  driver::DevicePtr device{driver::Device::open(driver::Driver::open().take(), 0).take()};
  std::array<std::unique_ptr<driver::Stream>, 2> streams{
      driver::Stream::create(device, driver::StreamPriority::kHighest).take(),
      driver::Stream::create(device, driver::StreamPriority::kHighest).take()};
  std::unique_ptr<driver::Event> event;
};

constexpr Nanoseconds kIdleNs = Watchdog::kUndeclaredNs;

}  // namespace

TEST(undeclared_wait_lets_one_segment_through_each_time) {
  DeviceScene scene;
  scene.pass_time(kIdleNs);  // the first look starts the time
  CHECK_EQ(scene.watchdog.undeclared(), 0);
  for (std::uint64_t forced = 1; forced <= 3; ++forced) {
    scene.pass_time(kIdleNs);
    CHECK_EQ(scene.watchdog.undeclared(), forced);
    CHECK_EQ(scene.written->all.size(), forced);
    scene.expect_one_segment();
    scene.pass_time(10'000'000);
    CHECK(!scene.gate->is_open());
  }
  CHECK_EQ(scene.gate->stats().forced_opens, 3);
}

TEST(long_step_of_serving_is_no_undeclared_wait) {
  for (const int stream : {0, 1}) {
    DeviceScene scene;
    scene.launch(stream);
    scene.pass_time(20 * kIdleNs);
    CHECK_EQ(scene.watchdog.undeclared(), 0);
    fake().release(scene.streams[stream]->get());
    scene.pass_time(2 * kIdleNs);
    CHECK_EQ(scene.watchdog.undeclared(), 1);
  }
}

TEST(serving_that_emits_tokens_or_has_no_request_waits_for_nothing) {
  DeviceScene scene;
  for (int i = 0; i < 40; ++i) {
    scene.pass_time(kIdleNs / 2);
    ++scene.progress;
  }
  scene.progress = 0;
  scene.pass_time(20 * kIdleNs);
  CHECK_EQ(scene.watchdog.undeclared(), 0);
  CHECK(scene.written->all.empty());
}

TEST(stream_under_capture_is_never_queried) {
  DeviceScene scene;
  const CUstream stream = scene.streams[1]->get();
  CHECK(driver::Graph::begin_capture(*scene.device, stream).ok());
  scene.pass_time(20 * kIdleNs);
  CHECK_EQ(scene.watchdog.undeclared(), 0);
  CHECK(driver::Graph::end_capture(scene.device, stream).ok());
  scene.pass_time(2 * kIdleNs);
  CHECK_EQ(scene.watchdog.undeclared(), 1);
}

TEST(undeclared_opening_that_nobody_takes_is_withdrawn) {
  DeviceScene scene;
  scene.pass_time(2 * kIdleNs);
  CHECK_EQ(scene.watchdog.undeclared(), 1);
  CHECK(scene.gate->is_open());
  scene.progress = 0;
  scene.pass_time(kIdleNs);
  CHECK(!scene.gate->is_open());
  CHECK(!scene.gate->try_pass().has_value());
}

TEST(declared_call_asks_the_driver_nothing) {
  DeviceScene scene;
  scene.watchdog.enter();
  const unsigned before = fake().calls("cuStreamQuery");
  scene.pass_time(kAfterNs);
  CHECK_EQ(fake().calls("cuStreamQuery"), before);
  scene.expect_one_segment();
  CHECK_EQ(scene.watchdog.undeclared(), 0);
  scene.watchdog.leave();
}

TEST(failed_query_is_no_evidence) {
  DeviceScene scene;
  for (int i = 0; i < 40; ++i) {
    fake().fail("cuStreamQuery", 1, 719);
    scene.pass_time(5'000'000);
  }
  CHECK_EQ(scene.watchdog.undeclared(), 0);
}

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
