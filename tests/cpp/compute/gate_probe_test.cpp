// The probe over the fake driver: gates that it accepts, and gates that it refuses.
#include "compute/gate_probe.h"

#include <atomic>
#include <charconv>
#include <cstring>
#include <sstream>
#include <string>
#include <thread>

#include "check.h"
#include "compute/fake_device.h"
#include "kernels/gate.h"

using namespace rose;
using namespace rose::compute;
using namespace rose::driver;
using rose::test::fake;
using rose::test::kCode;
using rose::test::Running;

// A gate that never wakes stays on the device, and so does its page.
// LeakSanitizer: leak:DeviceWord::create
// So does the code of a kernel in a stalled stream.
// LeakSanitizer: leak:keep_code

namespace {

// The kernel of this device lets every segment start.
void pass_at_once(const std::uint64_t* words, unsigned, void*) {
  kernels::GateParams params;
  std::memcpy(&params, words, sizeof params);
  __atomic_fetch_add(params.passed, 1, __ATOMIC_RELEASE);
}

void reset() {
  fake().reset();
  fake().arguments("gate_kernel", "48");
  fake().on_kernel("gate_kernel", &pass_at_once, nullptr);
}

struct Rig {
  Rig() {
    reset();
    device = Device::open(Driver::open().take(), 0).take();
    borrower = Stream::create(device, StreamPriority::kLowest).take();
    for (auto& one : serving) one = Stream::create(device, StreamPriority::kHighest).take();
    library = KernelLibrary::create(device, Fatbin{.name = "gate", .bytes = kCode}).take();
    request = {.borrower = borrower->get(),
               .serving = {serving[0]->get(), serving[1]->get()},
               .max_connections = {},
               .library = library,
               .in_one_process = true,
               .try_all = true};
    alive = fake().live();
  }
  ~Rig() {
    CHECK_EQ(std::string{fake().live()}, alive);
    CHECK_EQ(fake().pending(borrower->get()), 0);
    CHECK_EQ(std::string{fake().faults()}, "");
  }

  GateProbe probe() {
    const Running runs;
    return probe_gates(device, request);
  }

  DevicePtr device;
  std::unique_ptr<Stream> borrower;
  std::array<std::unique_ptr<Stream>, 2> serving;
  std::shared_ptr<const KernelLibrary> library;
  ProbeRequest request;
  std::string alive;
};

// The page registered last, which has the word of the gate under test.
class NewestWord {
 public:
  GateWord* get() {
    const unsigned calls = fake().calls("cuMemHostRegister");
    if (calls == calls_) return word_;  // the log grows with every poll
    calls_ = calls;
    const std::string log = fake().log();
    const std::string call = "cuMemHostRegister(0x";
    const std::size_t at = log.rfind(call);
    CHECK(at != std::string::npos);
    std::uintptr_t address = 0;
    std::from_chars(log.data() + at + call.size(), log.data() + log.size(), address, 16);
    return word_ = reinterpret_cast<GateWord*>(address);
  }

 private:
  unsigned calls_{0};
  GateWord* word_{nullptr};
};

// A device for the gate kernel: the fake runs a kernel at once, so the stream is held as long as
// the kernel would wait.
class KernelDevice {
 public:
  explicit KernelDevice(CUstream stream) : stream_{stream} {
    fake().on_kernel(
        "gate_kernel",
        [](const std::uint64_t* words, unsigned, void* context) {
          kernels::GateParams params;
          std::memcpy(&params, words, sizeof params);
          static_cast<KernelDevice*>(context)->run(params);
        },
        this);
    fake().hold(stream);
    thread_ = std::thread{[this] {
      while (!stop_.load()) look();
    }};
  }
  ~KernelDevice() {
    stop_.store(true);
    thread_.join();
    fake().release(stream_);
  }

  std::uint32_t load(const std::uint32_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
  void store(std::uint32_t* word, std::uint32_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
  }
  std::uint64_t now_ns() { return 0; }
  void pause() { CHECK(false); }

 private:
  void run(const kernels::GateParams& params) { kernels::start_segment(params, *this); }

  void look() {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    if (fake().pending(stream_) == 0) return;
    if (fake().calls("cuLaunchKernel") > 0) {
      const GateWord* word = word_.get();
      const auto left = word->credit.load() - word->passed.load();
      if (left != 1 || (word->state.load() & 3) == 0) return;
    }
    fake().advance(stream_);
  }

  CUstream stream_;
  NewestWord word_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace

TEST(gate_of_memory_operations_that_works_is_chosen) {
  Rig rig;
  const GateProbe probe = rig.probe();
  CHECK(probe.memop.is_usable);
  CHECK(probe.memop.wake_us > 0);
  CHECK(probe.memop.alias_us > 0);
  CHECK_EQ(probe.choice.kind, GateKind::kMemop);
  CHECK_EQ(probe.kernel.why, "the gate let a segment start without credit");
}

TEST(kernel_that_works_is_chosen_where_memory_operations_do_not) {
  Rig rig;
  {
    const KernelDevice device{rig.borrower->get()};
    rig.request.max_connections = 32;
    fake().fail("cuStreamBatchMemOp", 1, kNotSupported);
    const GateProbe probe = rig.probe();
    CHECK(!probe.memop.is_usable);
    CHECK(probe.memop.why.find("cuStreamBatchMemOp") != std::string::npos);
    CHECK_EQ(probe.kernel.why,
             "the gate holds and opens, and serving streams make progress beside it");
    CHECK(probe.kernel.is_usable);
    CHECK(probe.kernel.wake_us > 0);
    CHECK_EQ(probe.choice.kind, GateKind::kKernel);
    CHECK(probe.choice.why.find("cuStreamBatchMemOp") != std::string::npos);
  }
}

TEST(memory_operations_are_chosen_where_both_work) {
  Rig rig;
  const KernelDevice device{rig.borrower->get()};
  const GateProbe probe = rig.probe();
  CHECK(probe.memop.is_usable);
  CHECK(probe.kernel.is_usable);
  CHECK_EQ(probe.choice.kind, GateKind::kMemop);
}

TEST(driver_without_the_entry_has_no_gate_of_memory_operations) {
  fake().reset();
  fake().missing("cuStreamBatchMemOp");
  auto driver = Driver::open();
  CHECK(driver.ok());
  const DevicePtr device = Device::open(driver.take(), 0).take();
  const auto stream = Stream::create(device, StreamPriority::kLowest).take();
  const std::string alive = fake().live();
  const GateProbe probe = probe_gates(device, {.borrower = stream->get(),
                                               .serving = {},
                                               .max_connections = {},
                                               .library = {},
                                               .in_one_process = true});
  CHECK(!probe.memop.is_usable);
  CHECK(probe.memop.why.find("cuStreamBatchMemOp") != std::string::npos);
  CHECK(!probe.kernel.is_usable);  // this build has no device code
  CHECK_EQ(probe.choice.kind, GateKind::kHost);
  CHECK(probe.choice.why.find("no device code") != std::string::npos);
  CHECK_EQ(std::string{fake().live()}, alive);
}

TEST(gate_that_does_not_hold_is_refused) {
  for (const bool is_closed : {false, true}) {
    Rig rig;
    rig.request.hold_ns = 500'000'000;
    rig.request.in_one_process = false;
    std::atomic<bool> stop{false};
    // Another writer changes the word: it adds credit, or sets the drain bit while the gate is
    // closed.
    std::thread stranger{[&] {
      NewestWord newest;
      while (!stop.load()) {
        GateWord* word = fake().pending(rig.borrower->get()) > 0 ? newest.get() : nullptr;
        if (word != nullptr && !is_closed) word->credit.store(1);
        if (word != nullptr && is_closed && (word->state.load() & 1) == 0) word->state.fetch_or(2);
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }};
    const GateProbe probe = rig.probe();
    stop.store(true);
    stranger.join();
    CHECK(!probe.memop.is_usable);
    CHECK_EQ(probe.memop.why, is_closed ? "the gate let a segment start while it was closed"
                                        : "the gate let a segment start without credit");
    CHECK_EQ(probe.choice.kind, GateKind::kHost);
  }
}

TEST(gate_that_does_not_wake_is_refused_and_its_page_stays) {
  std::byte* page = nullptr;
  DevicePtr device;
  {
    Rig rig;
    device = rig.device;
    fake().hold(rig.borrower->get());
    rig.request.library = nullptr;  // one kind is enough
    const GateProbe probe = rig.probe();
    CHECK_EQ(probe.memop.why, "the segment behind the gate did not start after the gate opened");
    CHECK_EQ(probe.choice.kind, GateKind::kHost);
    CHECK(std::string{fake().live()} != rig.alive);
    page = reinterpret_cast<std::byte*>(NewestWord{}.get());
    fake().release(rig.borrower->get());
    const Current current{*device};
    CHECK_EQ(device->driver().entries().cuMemHostUnregister(page), kSuccess);
  }
}

TEST(parked_borrower_that_stalls_a_serving_stream_is_refused) {
  Rig rig;
  fake().hold(rig.serving[1]->get());
  const GateProbe probe = rig.probe();
  CHECK(!probe.memop.is_usable);
  CHECK(probe.memop.why.starts_with("a parked borrower stalls serving streams: stream number 1"));
  CHECK(probe.memop.alias_us >= 20'000);
  CHECK_EQ(probe.choice.kind, GateKind::kHost);
  fake().release(rig.serving[1]->get());
}

TEST(streams_that_nobody_names_are_tested_too) {
  Rig rig;
  fake().hold(nullptr);
  const GateProbe probe = rig.probe();
  CHECK(
      probe.memop.why.starts_with("a parked borrower stalls serving streams: the default stream"));
  CHECK_EQ(probe.choice.kind, GateKind::kHost);
  fake().release(nullptr);
}

TEST(streams_are_tested_with_a_kernel) {
  Rig rig;
  CHECK(rig.probe().memop.is_usable);
  const std::string ran = fake().kernels();
  for (const auto& one : rig.serving) {
    std::ostringstream line;
    line << "probe_kernel grid 1 1 1 block 1 1 1 shared 0 stream 0x" << std::hex
         << reinterpret_cast<std::uintptr_t>(one->get());
    CHECK(ran.find(line.str()) != std::string::npos);
  }
  CHECK(ran.find("whole_device_kernel grid 132 1 1 block 1 1 1 shared 232448") !=
        std::string::npos);
}

// The fake holds serving's stream once its four streams have run a kernel each, as a device does
// for a kernel that finds no free multiprocessor.
TEST(parked_borrower_that_keeps_a_part_of_a_multiprocessor_is_refused) {
  struct Holding {
    CUstream stream;
    int left{4};
  };
  Rig rig;
  Holding holding{rig.serving[0]->get()};
  fake().on_kernel(
      "probe_kernel",
      [](const std::uint64_t*, unsigned, void* context) {
        auto* what = static_cast<Holding*>(context);
        if (--what->left == 0) fake().hold(what->stream);
      },
      &holding);
  const GateProbe probe = rig.probe();
  CHECK(!probe.memop.is_usable);
  CHECK_EQ(probe.memop.why,
           "a parked borrower keeps a part of a multiprocessor: a serving kernel that needs the "
           "shared memory of all 132 did not run at once");
  CHECK_EQ(probe.choice.kind, GateKind::kHost);
  fake().release(rig.serving[0]->get());
}

// As under CUDA_LAUNCH_BLOCKING or a profiler: nothing but an opening frees the host thread.
TEST(launch_that_blocks_its_host_behind_the_gate_is_refused) {
  Rig rig;
  fake().set_launch_blocking(1);
  const GateProbe probe = rig.probe();
  CHECK(probe.memop.why.starts_with("a launch behind a closed gate blocks its host thread"));
  CHECK(!probe.memop.is_stuck);
  CHECK(!probe.kernel.is_usable);
  CHECK_EQ(probe.choice.kind, GateKind::kHost);
  fake().set_launch_blocking(0);
}

TEST(few_hardware_connections_are_refused_untried) {
  Rig rig;
  rig.request.max_connections = 1;
  reset();
  const GateProbe probe = rig.probe();
  CHECK(!probe.memop.is_usable);
  CHECK(!probe.kernel.is_usable);
  CHECK(probe.memop.why.starts_with("CUDA_DEVICE_MAX_CONNECTIONS is 1,"));
  CHECK_EQ(std::string{fake().log()}, "");
  rig.request.max_connections = 7;
  CHECK(!rig.probe().memop.is_usable);
  rig.request.max_connections = 8;
  CHECK(rig.probe().memop.is_usable);
}

TEST(kernel_is_for_one_process) {
  Rig rig;
  rig.request.in_one_process = false;
  reset();
  const GateProbe probe = rig.probe();
  CHECK(probe.memop.is_usable);
  CHECK(!probe.kernel.is_usable);
  CHECK(probe.kernel.why.find("another process") != std::string::npos);
  CHECK_EQ(std::string{fake().kernels()}.find("gate_kernel"), std::string::npos);
}

TEST(failing_call_is_named_and_leaves_nothing) {
  // The probe's shortest limit that passes without a look at the device: of a drain.
  constexpr Nanoseconds kShortestLimitNs = 100'000'000;
  int refused = 0;
  int late = 0;
  for (int nth = 1;; ++nth) {
    CHECK(nth < 1000);
    Rig rig;
    rig.request.in_one_process = false;
    rig.request.hold_ns = 50'000;            // few polls, which are all alike
    rig.request.launch_ns = 60'000'000'000;  // no launch blocks here
    const Nanoseconds from_ns = BootClock{}.now_ns();
    fake().fail("*", nth, 719);
    const GateProbe probe = rig.probe();
    const bool is_over = fake().is_fail_pending() != 0;
    fake().fail("", 0, 0);
    CHECK_EQ(fake().depth(), 0);
    if (fake().live() != rig.alive && BootClock{}.now_ns() - from_ns >= kShortestLimitNs) {
      // A busy machine let neither thread run while the gate was drained, so the gate stays. A call
      // that leaves something behind does so at each try.
      CHECK(++late < 5);
      fake().pump();
      rig.alive = fake().live();
      --nth;
      continue;
    }
    late = 0;
    if (!probe.memop.is_usable) {
      ++refused;
      CHECK(probe.memop.why.find("cu") != std::string::npos);
      CHECK(probe.memop.why.find("719") != std::string::npos);
      CHECK_EQ(probe.choice.kind, GateKind::kHost);
    }
    CHECK_EQ(std::string{fake().live()}, rig.alive);
    if (is_over) break;
  }
  CHECK(refused > 50);
}
