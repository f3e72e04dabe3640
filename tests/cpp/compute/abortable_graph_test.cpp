// Graphs whose segments an abort skips, over the fake driver, whose device is a thread. Its IF
// nodes run their bodies by the condition of branch_kernel, which calls kernels/gate.h itself.
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "check.h"
#include "compute/stream_rig.h"
#include "kernels/gate.h"

using namespace rose;
using namespace rose::compute;
using namespace rose::test;

namespace {

constexpr int kSegments = 5;

// The memory and the graph that a kernel sees.
struct World {
  std::uint32_t load(const std::uint32_t* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
  void store(std::uint32_t* at, std::uint32_t value) {
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
  }
  std::uint64_t now_ns() { return 1; }
  void pause() { CHECK(false); }  // the fake runs a kernel to its end, so a wait would never end
  void set_condition(std::uint64_t condition, unsigned value) {
    fake().set_condition(condition, value);
  }
};

// Makes the fake run a kernel of kernels/gate.h when one with its name is launched.
template <auto kRun, typename Params>
void run_in_fake(const char* name) {
  fake().arguments(name, std::to_string(sizeof(Params)).c_str());
  fake().on_kernel(
      name,
      [](const std::uint64_t* arguments, unsigned, void*) {
        Params params;
        std::memcpy(&params, arguments, sizeof params);
        World world;
        kRun(params, world);
      },
      nullptr);
}

// Segments that fold their number into a sum, which depends on order and number.
struct Work {
  std::vector<std::uint64_t> ran;
  std::uint64_t sum{1};
  // Called while a segment runs.
  std::function<void(std::uint64_t)> on_segment = [](std::uint64_t) {};
};

struct AbortRig : Rig {
  explicit AbortRig(GateKind kind) : Rig{{.window = 8}, 0, kind} {
    give_branches(kind);
    library = gate_kernels();
    segment = library->kernel("segment").value();
    fake().arguments("segment", "8");
    run_in_fake<kernels::branch_segment<World>, kernels::BranchParams>("branch_kernel");
    fake().on_kernel(
        "segment",
        [](const std::uint64_t* arguments, unsigned, void* context) {
          auto& work = *static_cast<Work*>(context);
          work.ran.push_back(arguments[0]);
          work.sum = work.sum * 31 + arguments[0];
          work.on_segment(arguments[0]);
        },
        &work);
    for (std::uint64_t i = 0; i < kSegments; ++i) {
      CHECK(Graph::begin_capture(*device, stream->get()).ok());
      CHECK(library->launch(segment, {}, stream->get(), i).ok());
      segments.push_back(Graph::end_capture(device, stream->get()).take());
    }
  }

  // Both kinds of gates need them only for graphs with branches.
  void give_branches(GateKind kind) {
    StreamGateConfig config{.window = 8, .branch_library = gate_kernels()};
    if (kind == GateKind::kKernel) config.library = gate_kernels();
    borrower.reset();
    borrower = StreamGate::create(device, gate, stream->get(), kind, config).take();
  }
  std::vector<CUgraph> captured() const {
    std::vector<CUgraph> out;
    for (const auto& one : segments) out.push_back(one->get());
    return out;
  }
  std::unique_ptr<Graph> make() {
    auto made = borrower->make_abortable(captured());
    CHECK_EQ(made.status().message(), "");
    return made.take();
  }

  Work work;
  std::shared_ptr<const KernelLibrary> library;
  CUkernel segment{nullptr};
  std::vector<std::unique_ptr<Graph>> segments;
};

std::vector<std::uint64_t> first(std::uint64_t count) {
  std::vector<std::uint64_t> out;
  for (std::uint64_t i = 0; i < count; ++i) out.push_back(i);
  return out;
}

constexpr GateKind kKinds[] = {GateKind::kMemop, GateKind::kKernel};

}  // namespace

TEST(graph_that_nobody_aborts_does_what_its_segments_do_alone) {
  for (const GateKind kind : kKinds) {
    AbortRig rig{kind};
    for (const auto& one : rig.segments) CHECK(one->launch(rig.stream->get()).ok());
    fake().pump();
    const std::uint64_t alone = rig.work.sum;
    rig.work = {};
    const auto graph = rig.make();
    for (std::uint32_t launched = 1; launched <= 3; ++launched) {
      rig.work = {};
      rig.open(kSegments);
      CHECK_EQ(rig.launch(*graph), Verdict::kPassed);
      fake().pump();
      CHECK_EQ(rig.work.ran, first(kSegments));
      CHECK_EQ(rig.work.sum, alone);
      CHECK_EQ(rig.gate->passed(), launched * kSegments);
      rig.gate->close(CloseReason::kArrival);
    }
  }
}

TEST(graph_stops_at_each_gate_without_credit_and_goes_on_with_it) {
  AbortRig rig{GateKind::kMemop};
  const auto graph = rig.make();
  rig.open(0);
  CHECK_EQ(rig.launch(*graph), Verdict::kPassed);
  for (std::uint32_t credit = 0; credit <= kSegments; ++credit) {
    rig.gate->set_credit(credit);
    fake().pump();
    CHECK_EQ(rig.work.ran, first(credit));
    CHECK_EQ(rig.gate->passed(), credit);
  }
  CHECK_EQ(rig.pending(), 0);
}

// An abort while the step waits at its gate number k + 1.
TEST(abort_at_a_gate_leaves_exactly_the_segments_before_it_done) {
  for (std::uint32_t done = 0; done < kSegments; ++done) {
    AbortRig rig{GateKind::kMemop};
    const auto graph = rig.make();
    rig.borrower->begin_step();
    rig.open(done);
    CHECK_EQ(rig.launch(*graph), Verdict::kPassed);
    fake().pump();
    CHECK_EQ(rig.work.ran, first(done));
    rig.gate->close(CloseReason::kRevocation);
    CHECK(rig.gate->abort_step());
    {
      const Running device;
      CHECK_EQ(rig.pass(kLongNs), Verdict::kAborted);
    }
    CHECK_EQ(rig.work.ran, first(done));
    // The numbers continue as if all segments had run, so the next step finds its own.
    CHECK_EQ(rig.gate->passed(), kSegments);
    CHECK_EQ(rig.borrower->in_flight(), 0);
    CHECK(!rig.gate->is_draining());
    rig.work = {};
    rig.open(kSegments);
    CHECK_EQ(rig.launch(*graph), Verdict::kPassed);
    fake().pump();
    CHECK_EQ(rig.work.ran, first(kSegments));
  }
}

// An abort while segment k runs: it ends, and no other begins.
TEST(abort_within_a_segment_leaves_out_all_behind_it) {
  for (const GateKind kind : kKinds) {
    for (std::uint64_t running = 0; running < kSegments; ++running) {
      AbortRig rig{kind};
      const auto graph = rig.make();
      rig.borrower->begin_step();
      rig.open(kSegments);
      rig.work.on_segment = [&](std::uint64_t number) {
        if (number != running) return;
        rig.gate->close(CloseReason::kRevocation);
        CHECK(rig.gate->abort_step());
        // as the borrower's host does in the meantime
        rig.gate->drain_to(rig.borrower->enqueued());
      };
      CHECK_EQ(rig.launch(*graph), Verdict::kPassed);
      {
        const Running device;
        CHECK_EQ(rig.pass(kLongNs), Verdict::kAborted);
      }
      CHECK_EQ(rig.work.ran, first(running + 1));
      CHECK_EQ(rig.gate->passed(), kSegments);
    }
  }
}

TEST(shut_down_leaves_segments_out_too) {
  AbortRig rig{GateKind::kMemop};
  const auto graph = rig.make();
  rig.open(2);
  CHECK_EQ(rig.launch(*graph), Verdict::kPassed);
  fake().pump();
  rig.gate->shut_down();
  const Running device;
  CHECK_EQ(rig.pass(kLongNs), Verdict::kShutDown);
  CHECK_EQ(rig.work.ran, first(2));
}

// The tests embed no device code.
TEST(gates_go_on_where_branches_cannot_be_loaded) {
  for (const GateKind kind : kKinds) {
    Rig rig{{}, 0, kind};
    run_in_fake<kernels::start_segment<World>, kernels::GateParams>("gate_kernel");
    CHECK_EQ(rig.borrower->make_abortable(std::vector<CUgraph>(1)).status().code(),
             Code::kUnavailable);
    rig.open(1);
    CHECK_EQ(rig.pass(), Verdict::kPassed);
    fake().pump();
    CHECK_EQ(rig.gate->passed(), 1);
  }
}

TEST(body_takes_no_memory_operations) {
  AbortRig rig{GateKind::kMemop};
  const auto gated = rig.capture(1);
  const std::vector<CUgraph> segments{gated->get()};
  const auto made = rig.borrower->make_abortable(segments);
  CHECK(made.status().message().starts_with("cuGraphInstantiateWithFlags"));
  CHECK(!rig.borrower->make_abortable({}).ok());
}

TEST(driver_without_conditions_is_named) {
  for (const char* call : {"cuGraphConditionalHandleCreate", "cuGraphAddNode"}) {
    fake().reset();
    fake().missing(call);
    const auto device = Device::open(Driver::open().take(), 0).take();
    fake().reset();
    const auto chain = driver::GraphChain::create(device).take();
    const auto condition = chain->make_condition();
    const Status refused =
        condition.ok() ? chain->add_if(condition.value(), nullptr) : condition.status();
    CHECK_EQ(refused.message(), "the CUDA driver has no " + std::string{call} +
                                    ", which came with CUDA 12.3: update the driver");
  }
}

TEST(nothing_is_left_when_the_nth_call_of_the_making_fails) {
  AbortRig rig{GateKind::kMemop};
  CHECK(rig.make() != nullptr);  // loads the kernel
  const std::string before = fake().live();
  int failures = 0;
  for (int n = 1;; ++n) {
    fake().fail("*", n, driver::kOutOfMemory);
    const auto made = rig.borrower->make_abortable(rig.captured());
    const bool is_over = fake().is_fail_pending() != 0;
    fake().fail("*", 0, 0);
    failures += made.ok() ? 0 : 1;
    if (is_over) break;
    if (!made.ok()) CHECK_EQ(std::string{fake().live()}, before);
  }
  CHECK(failures > 4 * kSegments);
}
