// The functions of gate_kernel in threads, over the gate word of a HostGate.
#include <array>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "compute/host_gate.h"
#include "kernels/gate.h"

using namespace rose;
using namespace rose::compute;

namespace {

constexpr auto kLetsGo = static_cast<std::uint32_t>(GateWord::kOpenBit | GateWord::kDrainBit);
constexpr std::uint64_t kNever = 600'000'000'000;

// Memory as on a device, and time that a test sets.
struct World {
  std::uint32_t load(const std::uint32_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
  void store(std::uint32_t* word, std::uint32_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
  }
  std::uint64_t now_ns() { return ticks_ns.load(); }
  void pause() {
    ++pauses;
    ticks_ns.fetch_add(tick_ns);
    std::this_thread::yield();
  }

  std::atomic<std::uint64_t> ticks_ns{1};
  std::uint64_t tick_ns{0};
  std::uint64_t pauses{0};
};

std::unique_ptr<HostGate> make_gate(std::uint32_t first = 0) {
  return HostGate::create(std::make_shared<BootClock>(), first).take();
}

kernels::GateParams params_of(const HostGate& gate, std::uint64_t limit_ns = kNever) {
  auto* word = reinterpret_cast<GateWord*>(gate.page());
  const auto at = [](auto* member) { return reinterpret_cast<std::uint32_t*>(member); };
  return {.state = at(&word->state),
          .credit = at(&word->credit),
          .passed = at(&word->passed),
          .overdue = at(&word->overdue),
          .limit_ns = limit_ns,
          .lets_go = kLetsGo};
}

bool may_start(const HostGate& gate) {
  World world;
  return kernels::may_start(params_of(gate), world);
}

}  // namespace

TEST(open_bit_and_credit_are_both_needed) {
  const auto gate = make_gate();
  CHECK(!may_start(*gate));
  gate->set_credit(1);
  CHECK(!may_start(*gate));
  CHECK(gate->open(0));
  CHECK(may_start(*gate));
  gate->close(CloseReason::kArrival);  // the close epoch is in the other half of the word
  CHECK(!may_start(*gate));
  gate->set_credit(0);
  CHECK(gate->open(1));
  CHECK(!may_start(*gate));
}

// The host clears the drain bit when the last segment is counted. A branch that counted first could
// miss the bit, and run a segment that the abort had skipped.
TEST(branch_is_decided_before_its_segment_is_counted) {
  const auto gate = make_gate();
  struct Deciding : World {
    void set_condition(std::uint64_t condition, unsigned value) {
      CHECK_EQ(condition, 7);
      CHECK_EQ(gate->passed(), decided.size());
      decided.push_back(value);
    }
    const HostGate* gate{nullptr};
    std::vector<unsigned> decided;
  } world;
  world.gate = gate.get();
  kernels::BranchParams branch{.gate = params_of(*gate),
                               .condition = 7,
                               .skips = static_cast<std::uint32_t>(GateWord::kDrainBit),
                               .has_waited = 0};
  gate->set_credit(2);
  CHECK(gate->open(0));
  kernels::branch_segment(branch, world);
  gate->close(CloseReason::kRevocation);
  gate->drain_to(3);
  kernels::branch_segment(branch, world);
  branch.has_waited = 1;  // it does not check again whether it may start
  kernels::branch_segment(branch, world);
  CHECK_EQ(world.decided, (std::vector<unsigned>{1, 0, 0}));
  CHECK_EQ(gate->passed(), 3);
}

TEST(drain_bit_lets_what_has_credit_start) {
  const auto gate = make_gate();
  gate->drain_to(2);
  World world;
  for (std::uint32_t i = 1; i <= 2; ++i) {
    kernels::start_segment(params_of(*gate), world);
    CHECK_EQ(gate->passed(), i);
  }
  CHECK(!may_start(*gate));
  CHECK_EQ(world.pauses, 0);
  CHECK_EQ(gate->overdue(), 0);
}

TEST(counters_wrap_without_a_gap) {
  const auto gate = make_gate(0xFFFFFFFEU);
  gate->set_credit(1);
  CHECK(gate->open(0));
  World world;
  for (int i = 0; i < 3; ++i) kernels::start_segment(params_of(*gate), world);
  CHECK_EQ(gate->passed(), 1);
  CHECK(!may_start(*gate));
  CHECK_EQ(world.pauses, 0);
}

TEST(credit_behind_the_segments_that_passed_is_none) {
  const auto gate = make_gate(7);
  CHECK(gate->open(0));
  auto* word = reinterpret_cast<GateWord*>(gate->page());
  for (const std::uint32_t credit : {7U, 6U, 0U, 0x80000007U}) {
    word->credit.store(credit);
    CHECK(!may_start(*gate));
  }
  word->credit.store(0x80000006U);
  CHECK(may_start(*gate));
}

TEST(wait_that_ends_at_its_limit_lets_one_segment_go_and_says_so) {
  const auto gate = make_gate();
  World world;
  world.tick_ns = 10;
  kernels::start_segment(params_of(*gate, 1000), world);
  CHECK_EQ(world.pauses, 100);
  CHECK_EQ(gate->passed(), 1);
  CHECK_EQ(gate->overdue(), 1);
  CHECK_EQ(gate->credit_left(), 0);
  gate->set_credit(gate->passed() + 1);
  CHECK(gate->open(0));
  kernels::start_segment(params_of(*gate, 1000), world);
  CHECK_EQ(gate->passed(), 2);
  CHECK_EQ(gate->overdue(), 1);
}

namespace {

// Reports when the device is between two looks at a closed gate.
struct PausingWorld : World {
  void pause() {
    is_at_work.store(false);
    std::this_thread::yield();
    is_at_work.store(true);
  }
  std::atomic<bool> is_at_work{false};
};

}  // namespace

TEST(no_segment_starts_between_a_close_and_the_next_opening) {
  const auto gate = make_gate();
  std::atomic<bool> serving{false};
  constexpr std::uint32_t kSegments = 2000;
  PausingWorld world;
  std::thread device{[&] {
    for (std::uint32_t i = 0; i < kSegments; ++i) {
      world.is_at_work.store(true);
      kernels::start_segment(params_of(*gate), world);
      CHECK(!serving.load());
    }
    world.is_at_work.store(false);
  }};
  std::mt19937 random{3};
  while (gate->passed() != kSegments) {
    gate->set_credit(gate->passed() + 1 + static_cast<std::uint32_t>(random() % 4));
    CHECK(gate->open(gate->close_epoch()));
    for (auto spin = random() % 200; spin > 0; --spin) (void)gate->is_open();
    gate->close(CloseReason::kArrival);
    // The segment that passed its gate before the close runs to its end.
    while (world.is_at_work.load()) std::this_thread::yield();
    serving.store(true);
    const std::uint32_t passed = gate->passed();
    for (int spin = 0; spin < 50; ++spin) CHECK_EQ(gate->passed(), passed);
    serving.store(false);
  }
  device.join();
  CHECK_EQ(gate->overdue(), 0);
}

TEST(ctas_end_at_once_only_if_all_are_on_the_device) {
  struct World {
    std::uint32_t load(const std::uint32_t* word) { return *word; }
    void add_one(std::uint32_t* word) { ++*word; }
    std::uint64_t now_ns() { return now; }
    void pause() { now += 1'000'000; }
    std::uint64_t now{0};
  };
  std::uint32_t arrived = 0;
  World first;
  kernels::meet(&arrived, 2, first);
  CHECK_EQ(first.now, kernels::kMeetNs);
  World second;
  kernels::meet(&arrived, 2, second);
  CHECK_EQ(second.now, 0);
}
