// The gate in a stream, over the fake driver: the calls it enqueues, the segments that a device
// starts, and the state after a failed call. It cannot show how a real device waits.
#include "compute/stream_gate.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "compute/stream_rig.h"
#include "kernels/gate.h"

using namespace rose;
using namespace rose::compute;
using namespace rose::driver;
using rose::test::fake;
using rose::test::kCode;
using rose::test::kLongNs;
using rose::test::kShortNs;
using rose::test::Rig;
using rose::test::Running;

// One test leaves a gate on a hanging device, and checks that its page stays.
// LeakSanitizer: leak:DeviceWord::create

namespace {

constexpr int kSomeError = 719;

std::vector<std::string> log_of(const char* call) {
  std::istringstream log{fake().log()};
  std::vector<std::string> out;
  bool is_inside = false;
  for (std::string line; std::getline(log, line);) {
    if (!line.starts_with(' ')) is_inside = line.starts_with(std::string{call} + "(");
    if (is_inside && line.starts_with(' ')) out.push_back(line);
  }
  return out;
}

// The operations of the gate with this number, as the fake logs them.
std::vector<std::string> gate_of(const HostGate& gate, std::uint32_t segment) {
  std::ostringstream text;
  const auto base = reinterpret_cast<std::uintptr_t>(gate.page());
  const auto at = [&](std::size_t offset) {
    std::ostringstream hex;
    hex << "0x" << std::hex << base + offset;
    return hex.str();
  };
  const std::string number = std::to_string(segment);
  return {"  wait " + at(offsetof(GateWord, credit)) + " >= " + number,
          "  wait " + at(offsetof(GateWord, state)) + " & 3",
          "  write " + at(offsetof(GateWord, passed)) + " = " + number};
}

std::vector<std::string> gates_of(const HostGate& gate, std::vector<std::uint32_t> segments) {
  std::vector<std::string> out;
  for (const std::uint32_t segment : segments) {
    const auto one = gate_of(gate, segment);
    out.insert(out.end(), one.begin(), one.end());
  }
  return out;
}

}  // namespace

// ---- one gate after the other

TEST(gate_is_one_batch_credit_first_then_the_open_bit_then_the_number) {
  Rig rig;
  rig.open(2);
  fake().reset();
  CHECK_EQ(rig.pass(), Verdict::kPassed);
  CHECK_EQ(fake().calls("cuStreamBatchMemOp"), 1);
  CHECK_EQ(log_of("cuStreamBatchMemOp"), gate_of(*rig.gate, 1));
  CHECK_EQ(rig.gate->passed(), 1);
  CHECK_EQ(rig.pass(), Verdict::kPassed);
  CHECK_EQ(log_of("cuStreamBatchMemOp"), gates_of(*rig.gate, {1, 2}));
}

TEST(new_gate_lets_nothing_into_the_stream) {
  Rig rig;
  CHECK_EQ(rig.pass(), Verdict::kTimedOut);
  CHECK_EQ(rig.borrower->enqueued(), 0);
  CHECK_EQ(fake().calls("cuStreamBatchMemOp"), 0);
}

TEST(segment_waits_for_credit_in_the_stream) {
  Rig rig;
  rig.open(0);
  CHECK_EQ(rig.pass(), Verdict::kPassed);
  fake().pump();
  CHECK_EQ(rig.gate->passed(), 0);
  rig.gate->set_credit(1);
  fake().pump();
  CHECK_EQ(rig.gate->passed(), 1);
  CHECK_EQ(rig.pending(), 0);
}

TEST(segment_whose_credit_was_seen_before_a_close_waits_for_the_next_opening) {
  Rig rig;
  rig.open(0);
  CHECK_EQ(rig.pass(), Verdict::kPassed);
  rig.gate->close(CloseReason::kArrival);
  rig.gate->set_credit(8);
  fake().pump();  // the credit is there now, and the device sees it
  CHECK_EQ(rig.gate->passed(), 0);
  rig.gate->set_credit(rig.gate->passed() + 1);  // the smallest quantum covers it
  fake().pump();
  CHECK_EQ(rig.gate->passed(), 0);
  CHECK(rig.gate->open(rig.gate->close_epoch()));
  fake().pump();
  CHECK_EQ(rig.gate->passed(), 1);
}

TEST(at_most_the_window_waits_in_the_stream) {
  for (const std::uint32_t window : {1U, 2U, 64U}) {
    Rig rig{{.window = window}};
    rig.open(0);
    for (std::uint32_t i = 0; i < window; ++i) CHECK_EQ(rig.pass(), Verdict::kPassed);
    CHECK_EQ(rig.pass(), Verdict::kTimedOut);
    CHECK_EQ(rig.borrower->enqueued(), window);
    CHECK_EQ(rig.borrower->in_flight(), window);
    rig.gate->set_credit(1);
    fake().pump();
    CHECK_EQ(rig.pass(), Verdict::kPassed);
    CHECK_EQ(rig.borrower->in_flight(), window);
  }
}

TEST(host_waits_while_the_gate_is_closed_and_goes_on_when_it_opens) {
  Rig rig;
  const Running device;
  rig.open(1);
  CHECK_EQ(rig.pass(), Verdict::kPassed);
  rig.gate->close(CloseReason::kArrival);
  CHECK_EQ(rig.pass(), Verdict::kTimedOut);
  std::thread opener{[&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    rig.open(1);
  }};
  CHECK_EQ(rig.pass(kLongNs), Verdict::kPassed);
  opener.join();
  CHECK_EQ(rig.borrower->settle(kLongNs), Verdict::kPassed);
  CHECK_EQ(rig.gate->passed(), 2);
  const GateStats stats = rig.gate->stats();
  CHECK_EQ(stats.pauses, 1);
  CHECK(stats.blocked_ns > 0);
}

TEST(window_that_frees_lets_a_waiting_host_go_on) {
  Rig rig{{.window = 1}};
  const Running device;
  rig.open(0);
  CHECK_EQ(rig.pass(), Verdict::kPassed);
  std::thread creditor{[&] { rig.gate->set_credit(1); }};
  CHECK_EQ(rig.pass(kLongNs), Verdict::kPassed);
  creditor.join();
  CHECK_EQ(rig.borrower->enqueued(), 2);
}

TEST(counters_wrap_without_a_gap) {
  Rig rig{{.window = 3}, 0xFFFFFFFEU};
  rig.open(2);
  for (int i = 0; i < 3; ++i) CHECK_EQ(rig.pass(), Verdict::kPassed);
  CHECK_EQ(log_of("cuStreamBatchMemOp"), gates_of(*rig.gate, {0xFFFFFFFFU, 0, 1}));
  fake().pump();
  CHECK_EQ(rig.gate->passed(), 0);
  CHECK_EQ(rig.borrower->in_flight(), 1);
  rig.gate->set_credit(1);
  fake().pump();
  CHECK_EQ(rig.gate->passed(), 1);
  CHECK_EQ(rig.borrower->in_flight(), 0);
}

TEST(borrower_asks_for_credit_when_it_waits_and_when_little_is_left) {
  Rig rig;
  rig.gate->set_low_water(1);
  rig.open(4);
  const std::uint32_t before = rig.gate->demand();
  CHECK_EQ(rig.pass(), Verdict::kPassed);
  CHECK_EQ(rig.gate->demand(), before);
  CHECK_EQ(rig.pass(), Verdict::kPassed);
  CHECK_EQ(rig.pass(), Verdict::kPassed);
  CHECK(rig.gate->demand() != before);
  const std::uint32_t then = rig.gate->demand();
  rig.gate->close(CloseReason::kArrival);
  CHECK_EQ(rig.pass(), Verdict::kTimedOut);
  CHECK(rig.gate->demand() != then);
}

TEST(no_segment_starts_between_a_close_and_the_next_opening) {
  Rig rig{{.window = 4}};
  static std::atomic<std::uint32_t> started{0};
  static HostGate* gate = nullptr;
  started.store(0);
  gate = rig.gate.get();
  CHECK_EQ(gate->passed(), 0);
  const auto library = rig.gate_kernels();
  const CUkernel segment = library->kernel("segment").value();
  fake().on_kernel(
      "segment",
      [](const std::uint64_t*, unsigned, void*) {
        // The host may enqueue a segment when its gate has already passed. But no segment starts
        // before its gate, and no gate passes while serving has the device.
        CHECK(started.fetch_add(1) < gate->passed());
      },
      nullptr);
  {
    const Running device;
    std::thread borrower{[&] {
      for (;;) {
        const Verdict verdict = rig.pass(kLongNs);
        if (verdict != Verdict::kPassed) break;
        CHECK(library->launch(segment, {}, rig.stream->get()).ok());
      }
    }};
    std::mt19937 random{7};
    for (int round = 0; round < 300; ++round) {
      rig.open(1 + static_cast<std::uint32_t>(random() % 6));
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 100));
      rig.gate->close(CloseReason::kArrival);
      // A segment that passed its gate before the close runs to its end, at the latest with the
      // pump's.
      fake().pump();
      fake().pump();
      const std::uint32_t passed = rig.gate->passed();
      fake().pump();
      CHECK_EQ(rig.gate->passed(), passed);
    }
    rig.gate->shut_down();
    borrower.join();
  }
  CHECK(started.load() > 0);
  CHECK_EQ(rig.borrower->in_flight(), 0);
}

// ---- abort, shut-down, end of a step

TEST(abort_lets_what_is_in_the_stream_run_out_and_nothing_more) {
  Rig rig{{.window = 3}};
  rig.borrower->begin_step();
  rig.open(0);
  for (int i = 0; i < 3; ++i) CHECK_EQ(rig.pass(), Verdict::kPassed);
  rig.gate->close(CloseReason::kRevocation);
  fake().pump();
  CHECK_EQ(rig.gate->passed(), 0);
  CHECK(rig.gate->abort_step());
  CHECK(!rig.borrower->try_pass().value().has_value());
  {
    const Running device;
    CHECK_EQ(rig.pass(), Verdict::kAborted);
  }
  CHECK_EQ(rig.gate->passed(), 3);
  CHECK_EQ(rig.borrower->enqueued(), 3);
  CHECK_EQ(rig.pending(), 0);
  CHECK(rig.borrower->is_drained());
  CHECK(!rig.gate->is_draining());
  CHECK(!rig.gate->is_open());
  CHECK_EQ(rig.gate->credit_left(), 0);
  CHECK_EQ(rig.borrower->drain_timeouts(), 0);
  CHECK_EQ(rig.gate->stats().aborts, 1);
  CHECK_EQ(rig.pass(), Verdict::kTimedOut);  // the request is used up, and the gate is closed
  CHECK_EQ(rig.borrower->enqueued(), 3);
  rig.open(1);
  CHECK_EQ(rig.pass(), Verdict::kPassed);
  fake().pump();
  CHECK_EQ(rig.gate->passed(), 4);
}

TEST(pass_that_must_not_wait_leaves_an_abort_to_one_that_may) {
  Rig rig;
  rig.borrower->begin_step();
  rig.open(8);
  CHECK(rig.gate->abort_step());
  CHECK(!rig.borrower->try_pass().value().has_value());
  CHECK_EQ(rig.borrower->enqueued(), 0);
  CHECK_EQ(rig.pass(), Verdict::kAborted);
  CHECK(rig.borrower->try_pass().value().has_value());
  CHECK_EQ(rig.borrower->enqueued(), 1);
}

TEST(abort_reaches_a_host_that_waits) {
  Rig rig;
  const Running device;
  rig.borrower->begin_step();
  rig.open(0);
  CHECK_EQ(rig.pass(), Verdict::kPassed);
  rig.gate->close(CloseReason::kArrival);
  std::thread serving{[&] { CHECK(rig.gate->abort_step()); }};
  CHECK_EQ(rig.pass(kLongNs), Verdict::kAborted);
  serving.join();
  CHECK_EQ(rig.gate->passed(), 1);
}

TEST(abort_waits_for_the_segment_that_runs) {
  Rig rig{{.drain_ns = kLongNs}};
  const Running device;
  rig.borrower->begin_step();
  rig.open(1);
  CHECK_EQ(rig.pass(), Verdict::kPassed);
  CHECK_EQ(rig.borrower->settle(kLongNs), Verdict::kPassed);
  fake().hold(rig.stream->get());  // the segment is on the device
  CHECK(rig.gate->abort_step());
  std::atomic<bool> is_over{false};
  std::thread end{[&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    is_over.store(true);
    fake().release(rig.stream->get());
  }};
  CHECK_EQ(rig.pass(), Verdict::kAborted);
  CHECK(is_over.load());
  end.join();
}

TEST(device_that_is_late_is_counted_and_stays_closed_until_it_is_done) {
  Rig rig{{.drain_ns = kShortNs}};
  rig.borrower->begin_step();
  rig.open(0);
  CHECK_EQ(rig.pass(), Verdict::kPassed);
  CHECK_EQ(rig.pass(), Verdict::kPassed);
  rig.gate->close(CloseReason::kRevocation);
  fake().hold(rig.stream->get());
  CHECK(rig.gate->abort_step());
  CHECK_EQ(rig.pass(), Verdict::kTimedOut);
  CHECK_EQ(rig.borrower->drain_timeouts(), 1);
  CHECK(!rig.borrower->is_drained());
  CHECK(!rig.gate->open(rig.gate->close_epoch()));
  CHECK_EQ(rig.pass(), Verdict::kTimedOut);
  CHECK_EQ(rig.borrower->enqueued(), 2);
  fake().release(rig.stream->get());
  CHECK_EQ(rig.gate->passed(), 2);
  CHECK(rig.borrower->is_drained());
  CHECK_EQ(rig.pass(), Verdict::kAborted);
  CHECK_EQ(rig.borrower->drain_timeouts(), 1);
  rig.open(1);
  CHECK_EQ(rig.pass(), Verdict::kPassed);
}

TEST(late_device_gets_nothing_more_even_if_the_gate_is_open) {
  Rig rig{{.drain_ns = kShortNs}};
  rig.borrower->begin_step();
  rig.open(8);
  fake().hold(rig.stream->get());
  CHECK_EQ(rig.pass(), Verdict::kPassed);
  CHECK(rig.gate->abort_step());
  CHECK_EQ(rig.pass(), Verdict::kTimedOut);
  CHECK(rig.gate->is_open());
  CHECK_EQ(rig.pass(), Verdict::kTimedOut);
  CHECK_EQ(rig.borrower->enqueued(), 1);
  fake().release(rig.stream->get());
  CHECK_EQ(rig.pass(), Verdict::kAborted);
  CHECK_EQ(rig.pass(), Verdict::kPassed);
  CHECK(!rig.gate->is_draining());
}

TEST(a_gate_that_ends_behind_a_late_drain_leaves_no_bit_of_it) {
  Rig rig{{.drain_ns = kShortNs}};
  rig.borrower->begin_step();
  rig.open(8);
  fake().hold(rig.stream->get());
  CHECK_EQ(rig.pass(), Verdict::kPassed);
  CHECK(rig.gate->abort_step());
  CHECK_EQ(rig.pass(), Verdict::kTimedOut);
  fake().release(rig.stream->get());
  CHECK_EQ(rig.gate->passed(), 1);
  CHECK(rig.gate->is_draining());  // nobody has looked since
  rig.borrower.reset();
  CHECK(!rig.gate->is_draining());
}

TEST(creditor_cannot_stall_a_drain) {
  Rig rig{{.window = 3, .drain_ns = kShortNs}};
  rig.borrower->begin_step();
  rig.open(0);
  for (int i = 0; i < 3; ++i) CHECK_EQ(rig.pass(), Verdict::kPassed);
  rig.gate->close(CloseReason::kRevocation);
  fake().hold(rig.stream->get());
  CHECK(rig.gate->abort_step());
  CHECK_EQ(rig.pass(), Verdict::kTimedOut);
  CHECK(rig.gate->is_draining());
  rig.gate->set_credit(1);  // a quantum that was decided before the drain
  CHECK_EQ(rig.gate->credit_left(), 3);
  fake().release(rig.stream->get());
  CHECK(rig.borrower->is_drained());
  CHECK_EQ(rig.gate->passed(), 3);
}

TEST(credit_that_a_drain_lost_is_given_again) {
  Rig rig{{.drain_ns = kShortNs}};
  rig.borrower->begin_step();
  rig.open(0);
  CHECK_EQ(rig.pass(), Verdict::kPassed);
  rig.gate->close(CloseReason::kRevocation);
  fake().hold(rig.stream->get());
  CHECK(rig.gate->abort_step());
  CHECK_EQ(rig.pass(), Verdict::kTimedOut);
  // The creditor looks before the bit is set and writes after it. This is its store.
  auto* word = reinterpret_cast<GateWord*>(rig.gate->page());
  word->credit.store(0);
  CHECK(!rig.borrower->is_drained());
  fake().release(rig.stream->get());
  CHECK(rig.borrower->is_drained());
}

TEST(shut_down_drains_and_lets_everybody_go) {
  Rig rig;
  const Running device;
  rig.borrower->begin_step();
  rig.open(0);
  CHECK_EQ(rig.pass(), Verdict::kPassed);
  std::thread owner{[&] { rig.gate->shut_down(); }};
  CHECK_EQ(rig.borrower->settle(kLongNs), Verdict::kShutDown);
  owner.join();
  CHECK_EQ(rig.gate->passed(), 1);
  CHECK_EQ(rig.pass(kLongNs), Verdict::kShutDown);
  CHECK(!rig.gate->is_draining());
  CHECK_EQ(rig.borrower->enqueued(), 1);
}

TEST(step_goes_on_until_its_last_segment_has_started) {
  Rig rig;
  rig.borrower->begin_step();
  rig.open(1);
  CHECK_EQ(rig.pass(), Verdict::kPassed);
  rig.borrower->end_step();
  CHECK(!rig.gate->is_in_step());
  rig.borrower->begin_step();
  CHECK_EQ(rig.pass(), Verdict::kPassed);
  rig.borrower->end_step();
  CHECK(rig.gate->is_in_step());
  CHECK_EQ(rig.borrower->settle(kShortNs), Verdict::kTimedOut);
  rig.gate->set_credit(2);
  fake().pump();
  CHECK_EQ(rig.borrower->settle(kShortNs), Verdict::kPassed);
  CHECK(!rig.gate->is_in_step());
}

TEST(abort_of_a_step_whose_end_waits_in_the_stream_is_not_lost) {
  Rig rig;
  const Running device;
  rig.borrower->begin_step();
  rig.open(0);
  CHECK_EQ(rig.pass(), Verdict::kPassed);
  rig.borrower->end_step();
  rig.gate->close(CloseReason::kRevocation);
  CHECK(rig.gate->abort_step());
  rig.borrower->begin_step();
  CHECK_EQ(rig.pass(kLongNs), Verdict::kAborted);
  CHECK_EQ(rig.gate->passed(), 1);
  rig.borrower->end_step();
  rig.borrower->begin_step();  // but a request for a finished step is
  CHECK(rig.gate->abort_step());
  rig.borrower->end_step();
  rig.borrower->begin_step();
  CHECK_EQ(rig.pass(), Verdict::kTimedOut);
}

// ---- durations

TEST(segment_lasts_from_its_gate_to_the_next) {
  Rig rig{{.window = 64}};
  rig.borrower->begin_step();
  rig.open(64);
  for (int i = 0; i < 3; ++i) CHECK_EQ(rig.pass(), Verdict::kPassed);
  CHECK_EQ(rig.gate->stats().segments.count, 2);
  rig.borrower->leave();
  CHECK_EQ(rig.gate->stats().segments.count, 3);
  rig.borrower->leave();
  CHECK_EQ(rig.gate->stats().segments.count, 3);
  fake().hold(rig.stream->get());
  for (std::uint32_t i = 0; i < SegmentTimer::kPairs + 4; ++i) {
    CHECK_EQ(rig.pass(), Verdict::kPassed);
  }
  rig.borrower->end_step();
  CHECK_EQ(rig.gate->stats().segments.count, 3);  // read when complete, never waited for
  fake().release(rig.stream->get());
  rig.borrower->leave();
  CHECK_EQ(rig.gate->stats().segments.count, 3 + SegmentTimer::kPairs);
  CHECK(rig.gate->recent_segment_ns(1.0) >= 0);
}

TEST(recorded_duration_reaches_histogram_and_estimate) {
  const auto clock = std::make_shared<ManualClock>();
  const auto gate = HostGate::create(clock).take();
  clock->advance(5'000);
  gate->record_segment(700);
  CHECK_EQ(gate->stats().segments.count, 1);
  CHECK_EQ(gate->stats().segments.max_ns, 700);
  CHECK_EQ(gate->recent_segment_ns(0.99), 700);
  CHECK_EQ(gate->since_segment_ns(), 0);
  CHECK_EQ(gate->drain_segments().size(), 1);
}

// ---- graphs

TEST(inserted_gates_stand_in_the_chain_of_the_graph) {
  Rig rig;
  const auto library = rig.gate_kernels();
  const CUkernel segment = library->kernel("segment").value();
  CHECK(Graph::begin_capture(*rig.device, rig.stream->get()).ok());
  for (int i = 0; i < 2; ++i) {
    CHECK(rig.borrower->insert(rig.stream->get()).ok());
    CHECK(library->launch(segment, {}, rig.stream->get()).ok());
  }
  const auto graph = Graph::end_capture(rig.device, rig.stream->get()).take();
  CHECK_EQ(fake().calls("cuStreamBatchMemOp"), 0);
  rig.open(1);
  CHECK_EQ(rig.launch(*graph), Verdict::kPassed);
  fake().pump();
  CHECK_EQ(rig.gate->passed(), 1);  // and the second half of the graph waits behind its gate
  CHECK_EQ(std::string{fake().kernels()}.find("segment"), 0);
  const auto runs = [] {
    const std::string text = fake().kernels();
    std::size_t count = 0;
    for (auto at = text.find("segment"); at != text.npos; at = text.find("segment", at + 1))
      ++count;
    return count;
  };
  CHECK_EQ(runs(), 1);
  rig.gate->set_credit(2);
  fake().pump();
  CHECK_EQ(runs(), 2);
  CHECK_EQ(rig.gate->passed(), 2);
}

TEST(launch_gives_the_gates_of_a_graph_their_numbers) {
  Rig rig{{.window = 4}};
  const auto graph = rig.capture(2);
  const auto other = rig.capture(1);
  rig.open(8);
  CHECK_EQ(rig.pass(), Verdict::kPassed);
  fake().reset();
  CHECK_EQ(rig.launch(*graph), Verdict::kPassed);
  CHECK_EQ(log_of("cuGraphExecBatchMemOpNodeSetParams"), gates_of(*rig.gate, {2, 3}));
  CHECK_EQ(rig.borrower->enqueued(), 3);
  CHECK_EQ(rig.launch(*other), Verdict::kPassed);
  CHECK_EQ(rig.launch(*graph), Verdict::kPassed);
  CHECK_EQ(log_of("cuGraphExecBatchMemOpNodeSetParams"), gates_of(*rig.gate, {2, 3, 4, 5, 6}));
  CHECK_EQ(rig.pass(), Verdict::kPassed);
  fake().pump();
  CHECK_EQ(rig.gate->passed(), 7);
  CHECK_EQ(std::string{fake().faults()}, "");
}

TEST(graph_is_timed_as_a_whole_if_no_gate_in_it_waits) {
  Rig rig{{.window = 8}};
  const auto graph = rig.capture(2);
  const auto recorded = [&] { return rig.gate->stats().segments.count; };
  rig.open(4);
  CHECK_EQ(rig.pass(), Verdict::kPassed);
  CHECK_EQ(rig.launch(*graph), Verdict::kPassed);
  fake().pump();
  rig.borrower->leave();
  fake().pump();
  rig.borrower->leave();
  CHECK_EQ(recorded(), 1);                         // and not the segment before, which ended inside
  CHECK_EQ(rig.launch(*graph), Verdict::kPassed);  // one gate has no credit
  rig.gate->set_credit(8);
  fake().pump();
  rig.borrower->leave();
  CHECK_EQ(recorded(), 1);
  CHECK_EQ(rig.launch(*graph), Verdict::kPassed);
  rig.gate->close(CloseReason::kRevocation);  // a gate in it may wait
  rig.open(8);
  fake().pump();
  rig.borrower->leave();
  fake().pump();
  rig.borrower->leave();
  CHECK_EQ(recorded(), 1);
  fake().fail("cuGraphLaunch", 1, 719);
  CHECK(!rig.borrower->launch(*graph, kShortNs).ok());
  CHECK_EQ(rig.pass(), Verdict::kPassed);
  fake().pump();
  rig.borrower->leave();
  fake().pump();
  rig.borrower->leave();
  CHECK_EQ(recorded(), 2);  // the segment behind the last gate
}

TEST(graph_is_in_flight_at_most_once) {
  Rig rig{{.window = 8}};
  const auto graph = rig.capture(2);
  const auto other = rig.capture(2);
  rig.open(0);
  CHECK_EQ(rig.launch(*graph), Verdict::kPassed);
  CHECK_EQ(rig.launch(*graph), Verdict::kTimedOut);
  CHECK_EQ(rig.launch(*other), Verdict::kPassed);
  rig.gate->set_credit(2);
  fake().pump();
  CHECK_EQ(rig.launch(*graph), Verdict::kPassed);
  CHECK_EQ(rig.borrower->enqueued(), 6);
}

TEST(graph_beyond_the_window_goes_alone) {
  Rig rig{{.window = 2}};
  const auto graph = rig.capture(5);
  rig.open(0);
  CHECK_EQ(rig.pass(), Verdict::kPassed);
  CHECK_EQ(rig.launch(*graph), Verdict::kTimedOut);
  rig.gate->set_credit(1);
  fake().pump();
  CHECK_EQ(rig.launch(*graph), Verdict::kPassed);
  CHECK_EQ(rig.borrower->in_flight(), 5);
  CHECK_EQ(rig.pass(), Verdict::kTimedOut);
  rig.gate->close(CloseReason::kRevocation);
  rig.borrower->begin_step();
  CHECK(rig.gate->abort_step());
  const Running device;
  CHECK_EQ(rig.pass(kLongNs), Verdict::kAborted);
  CHECK_EQ(rig.gate->passed(), 6);
}

TEST(graph_that_rested_for_two_billion_segments_is_not_in_flight) {
  Rig rig{{}, 0x80000010U};
  const auto graph = rig.capture(1);
  rig.open(1);
  CHECK_EQ(rig.launch(*graph), Verdict::kPassed);
}

TEST(stream_that_is_captured_takes_no_numbered_gate_and_others_take_no_insertion) {
  Rig rig;
  rig.open(4);
  CHECK(!rig.borrower->insert(rig.stream->get()).ok());
  const auto graph = rig.capture(1);
  const auto empty = rig.capture(0);
  CHECK_EQ(rig.borrower->launch(*empty, kShortNs).status().code(), Code::kInvalidArgument);
  CHECK(Graph::begin_capture(*rig.device, rig.stream->get()).ok());
  CHECK_EQ(rig.borrower->pass(kShortNs).status().code(), Code::kInvalidArgument);
  CHECK_EQ(rig.borrower->try_pass().status().code(), Code::kInvalidArgument);
  CHECK_EQ(rig.borrower->launch(*graph, kShortNs).status().code(), Code::kInvalidArgument);
  CHECK_EQ(rig.borrower->enqueued(), 0);
  CHECK(Graph::end_capture(rig.device, rig.stream->get()).ok());
  CHECK_EQ(rig.pass(), Verdict::kPassed);
}

// ---- the kernel

namespace {

// The fake's device runs the kernel when the gate would pass; until then the stream is held.
struct KernelGate {
  explicit KernelGate(Rig& rig) : rig_{rig} {
    fake().arguments("gate_kernel", "48");
    fake().on_kernel(
        "gate_kernel",
        [](const std::uint64_t* words, unsigned count, void* context) {
          CHECK_EQ(count, 6);
          kernels::GateParams params;
          static_assert(sizeof params == 48);
          std::memcpy(&params, words, sizeof params);
          static_cast<KernelGate*>(context)->run(params);
        },
        this);
  }

  std::uint32_t load(const std::uint32_t* word) const {
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
  }
  void store(std::uint32_t* word, std::uint32_t value) const {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
  }
  std::uint64_t now_ns() const { return 0; }
  void pause() const { CHECK(false); }

  void run(const kernels::GateParams& params) {
    auto* word = reinterpret_cast<GateWord*>(rig_.gate->page());
    CHECK_EQ(static_cast<const void*>(params.state), static_cast<const void*>(&word->state));
    CHECK_EQ(static_cast<const void*>(params.credit), static_cast<const void*>(&word->credit));
    CHECK_EQ(static_cast<const void*>(params.passed), static_cast<const void*>(&word->passed));
    CHECK_EQ(static_cast<const void*>(params.overdue), static_cast<const void*>(&word->overdue));
    CHECK_EQ(params.lets_go, 3);
    CHECK(params.limit_ns >= 60'000'000'000);
    kernels::start_segment(params, *this);
  }

  Rig& rig_;
};

}  // namespace

TEST(kernel_gate_is_one_thread_with_the_words_of_the_gate) {
  Rig rig{{}, 0, GateKind::kKernel};
  KernelGate device{rig};
  rig.open(2);
  CHECK_EQ(rig.pass(), Verdict::kPassed);
  CHECK_EQ(rig.gate->passed(), 1);
  CHECK_EQ(fake().calls("cuStreamBatchMemOp"), 0);
  CHECK(std::string{fake().kernels()}.starts_with("gate_kernel grid 1 1 1 block 1 1 1 shared 0"));
}

TEST(captured_kernel_gate_needs_no_number) {
  Rig rig{{.window = 4}, 0, GateKind::kKernel};
  KernelGate device{rig};
  CHECK_EQ(rig.borrower->insert(rig.stream->get()).code(), Code::kInvalidArgument);
  CHECK_EQ(fake().calls("cuLaunchKernel"), 0);
  const auto graph = rig.capture(2);
  rig.open(4);
  CHECK_EQ(rig.gate->passed(), 0);
  for (int i = 0; i < 2; ++i) CHECK_EQ(rig.launch(*graph), Verdict::kPassed);
  fake().pump();
  CHECK_EQ(rig.gate->passed(), 4);
  CHECK_EQ(rig.borrower->enqueued(), 4);
  CHECK_EQ(fake().calls("cuGraphExecBatchMemOpNodeSetParams"), 0);
}

// ---- making and dropping one

TEST(arguments_that_mean_nothing_are_refused) {
  Rig rig;
  const auto make = [&](GateKind kind, std::uint32_t window) {
    auto gate = HostGate::create(std::make_shared<BootClock>()).take();
    return StreamGate::create(rig.device, std::move(gate), rig.stream->get(), kind,
                              {.window = window})
        .status();
  };
  CHECK_EQ(make(GateKind::kHost, 2).code(), Code::kInvalidArgument);
  CHECK_EQ(make(GateKind::kMemop, 0).code(), Code::kInvalidArgument);
  CHECK_EQ(make(GateKind::kMemop, 65).code(), Code::kInvalidArgument);
  CHECK_EQ(make(GateKind::kKernel, 2).code(), Code::kUnavailable);  // no device code in this build
  CHECK(make(GateKind::kMemop, 64).ok());
}

TEST(window_is_what_the_launch_queue_takes_and_a_longer_segment_is_refused) {
  Rig rig;
  const auto create = [&](std::uint32_t window, std::uint32_t launches) {
    return StreamGate::create(rig.device, HostGate::create(std::make_shared<BootClock>()).take(),
                              rig.stream->get(), GateKind::kMemop,
                              {.window = window, .launches = launches});
  };
  CHECK_EQ(create(2, 508).value()->window(), 2);
  CHECK_EQ(create(2, 509).value()->window(), 1);
  CHECK_EQ(create(64, 13).value()->window(), 63);
  const Status refused = create(2, 1021).status();
  CHECK(refused.code() == Code::kInvalidArgument);
  CHECK_EQ(refused.message(),
           "a segment of 1021 launches does not fit the launch queue of 1024, so a closed gate "
           "would block the host: the longest segment that fits has 1020 launches; use more gates "
           "per step");
  CHECK(!create(64, 0xFFFFFFFFU).ok());
}

TEST(measured_launches_set_the_window_and_a_refusal_leaves_it) {
  Rig rig{{.window = 4}};
  CHECK(rig.borrower->set_launches(400).ok());
  CHECK_EQ(rig.borrower->window(), 2);
  CHECK_EQ(rig.borrower->set_launches(1021).code(), Code::kInvalidArgument);
  CHECK_EQ(rig.borrower->window(), 2);
  fake().hold(rig.stream->get());
  rig.open(8);
  CHECK_EQ(rig.pass(), Verdict::kPassed);
  CHECK_EQ(rig.pass(), Verdict::kPassed);
  CHECK_EQ(rig.pass(), Verdict::kTimedOut);
}

TEST(gate_goes_on_counting_from_the_segments_that_passed_without_the_bit_of_a_dead_borrower) {
  Rig rig{{}, 40};
  rig.borrower.reset();
  rig.gate->drain_to(40);
  rig.borrower =
      StreamGate::create(rig.device, rig.gate, rig.stream->get(), GateKind::kMemop).take();
  CHECK_EQ(rig.borrower->enqueued(), 40);
  rig.open(1);
  CHECK_EQ(rig.pass(), Verdict::kPassed);
  CHECK_EQ(rig.gate->passed(), 41);
}

TEST(gate_that_is_dropped_lets_its_stream_run_out) {
  Rig rig;
  CHECK(std::string{fake().live()}.find("registered 1") != std::string::npos);
  rig.open(0);
  CHECK_EQ(rig.pass(), Verdict::kPassed);
  rig.gate->close(CloseReason::kArrival);
  {
    const Running device;
    rig.borrower.reset();
  }
  CHECK_EQ(rig.pending(), 0);
  CHECK(!rig.gate->is_draining());
}

TEST(page_stays_when_the_device_still_waits_on_it) {
  Rig rig{{.drain_ns = kShortNs}};
  const DevicePtr device = rig.device;
  std::byte* page = rig.gate->page();
  rig.open(0);
  CHECK_EQ(rig.pass(), Verdict::kPassed);
  fake().hold(rig.stream->get());
  rig.borrower.reset();
  rig.gate.reset();
  CHECK(std::string{fake().live()}.find("registered 1") != std::string::npos);
  fake().release(rig.stream->get());
  CHECK_EQ(rig.pending(), 0);
  CHECK_EQ(std::string{fake().faults()}, "");
  const Current current{*device};  // for the tests after this one
  CHECK_EQ(device->driver().entries().cuMemHostUnregister(page), kSuccess);
}

// ---- every call that can fail

namespace {

// Lets the nth driver call of `act` fail, for every n. `act` returns the result.
void fail_each(const std::function<Status()>& act, const std::function<void(bool)>& after) {
  int failed = 0;
  for (int nth = 1;; ++nth) {
    fake().fail("*", nth, kSomeError);
    const Status status = act();
    const bool is_over = fake().is_fail_pending() != 0;
    fake().fail("", 0, 0);
    if (!status.ok()) {
      ++failed;
      CHECK(status.message().find("cu") != std::string::npos);
      CHECK(status.message().find(std::to_string(kSomeError)) != std::string::npos);
    }
    after(status.ok());
    CHECK_EQ(std::string{fake().faults()}, "");
    CHECK_EQ(fake().depth(), 0);
    if (!is_over) continue;
    CHECK(status.ok());
    break;
  }
  CHECK(failed > 0);
}

}  // namespace

TEST(failing_creation_leaves_nothing_registered) {
  for (const GateKind kind : {GateKind::kMemop, GateKind::kKernel}) {
    Rig rig;
    const auto library = rig.gate_kernels();
    rig.borrower.reset();
    const std::string before = fake().live();
    fail_each(
        [&] {
          return StreamGate::create(rig.device, rig.gate, rig.stream->get(), kind,
                                    {.library = library})
              .status();
        },
        [&](bool) { CHECK_EQ(std::string{fake().live()}, before); });
    CHECK(!rig.gate->is_open());
  }
}

TEST(failing_pass_is_as_if_it_had_not_been_called) {
  for (const GateKind kind : {GateKind::kMemop, GateKind::kKernel}) {
    Rig rig{{}, 0, kind};
    KernelGate device{rig};
    const std::string before = fake().live();
    std::uint32_t passed = 0;
    fail_each(
        [&] {
          rig.open(1);
          return rig.borrower->pass(kShortNs).status();
        },
        [&](bool is_ok) {
          if (is_ok) ++passed;
          fake().pump();
          CHECK_EQ(rig.borrower->enqueued(), passed);
          CHECK_EQ(rig.gate->passed(), passed);
          CHECK_EQ(std::string{fake().live()}, before);
        });
  }
}

TEST(failing_insertion_leaves_a_capture_that_can_be_dropped) {
  for (const GateKind kind : {GateKind::kMemop, GateKind::kKernel}) {
    Rig rig{{}, 0, kind};
    KernelGate device{rig};
    const std::string before = fake().live();
    std::unique_ptr<Graph> graph;
    fail_each(
        [&] {
          graph.reset();
          ROSE_TRY(Graph::begin_capture(*rig.device, rig.stream->get()));
          return rig.borrower->insert(rig.stream->get());
        },
        [&](bool is_ok) {
          auto ended = Graph::end_capture(rig.device, rig.stream->get());
          if (ended.ok()) graph = ended.take();
          rig.open(1);
          if (is_ok) {
            CHECK_EQ(rig.launch(*graph), Verdict::kPassed);
          } else if (graph != nullptr) {
            CHECK(!rig.borrower->launch(*graph, kShortNs).ok());
          }
          graph.reset();
          CHECK_EQ(std::string{fake().live()}, before);
        });
  }
}

TEST(failing_launch_is_as_if_it_had_not_been_called) {
  for (const GateKind kind : {GateKind::kMemop, GateKind::kKernel}) {
    Rig rig{{.window = 3}, 0, kind};
    KernelGate device{rig};
    const auto graph = rig.capture(3);
    const std::string before = fake().live();
    std::uint32_t passed = 0;
    fail_each(
        [&] {
          rig.open(3);
          return rig.borrower->launch(*graph, kShortNs).status();
        },
        [&](bool is_ok) {
          if (is_ok) passed += 3;
          fake().pump();
          CHECK_EQ(rig.borrower->enqueued(), passed);
          CHECK_EQ(rig.gate->passed(), passed);
          CHECK_EQ(std::string{fake().live()}, before);
        });
  }
}

TEST(abort_ends_whichever_call_fails) {
  Rig rig{{.window = 2, .drain_ns = kLongNs}};
  const Running device;
  bool is_over = false;
  for (int nth = 1; !is_over; ++nth) {
    rig.borrower->begin_step();
    rig.open(0);
    CHECK_EQ(rig.pass(), Verdict::kPassed);
    rig.gate->close(CloseReason::kRevocation);
    CHECK(rig.gate->abort_step());
    fake().fail("*", nth, kSomeError);
    CHECK_EQ(rig.pass(kLongNs), Verdict::kAborted);
    is_over = fake().is_fail_pending() != 0;
    fake().fail("", 0, 0);
    CHECK(rig.borrower->is_drained());
    CHECK_EQ(rig.borrower->in_flight(), 0);
    CHECK(!rig.gate->is_open());
    rig.borrower->end_step();
  }
}
