// A gate in a stream of the fake device, for several tests.
#pragma once

#include <memory>
#include <string>

#include "check.h"
#include "compute/fake_device.h"
#include "compute/stream_gate.h"

namespace rose::test {

using compute::CloseReason;
using compute::GateKind;
using compute::HostGate;
using compute::StreamGate;
using compute::StreamGateConfig;
using compute::Verdict;
using driver::Device;
using driver::Driver;
using driver::Fatbin;
using driver::Graph;
using driver::KernelLibrary;
using driver::Stream;
using driver::StreamPriority;

constexpr Nanoseconds kLongNs = 200'000'000'000;
constexpr Nanoseconds kShortNs = 2'000'000;

struct Rig {
  explicit Rig(StreamGateConfig config = {}, std::uint32_t first = 0,
               GateKind kind = GateKind::kMemop) {
    fake().reset();
    auto opened = Driver::open();
    CHECK(opened.ok());
    device = Device::open(opened.take(), 0).take();
    stream = Stream::create(device, StreamPriority::kLowest).take();
    gate = HostGate::create(std::make_shared<BootClock>(), first).take();
    if (kind == GateKind::kKernel) config.library = gate_kernels();
    auto made = StreamGate::create(device, gate, stream->get(), kind, config);
    CHECK_EQ(made.status().message(), "");
    borrower = made.take();
  }

  // Work that a test leaves in the stream runs out, and nothing stays.
  ~Rig() {
    fake().release(stream->get());
    const Running runs;
    borrower.reset();
    CHECK_EQ(std::string{fake().live()}.find("events"), std::string::npos);
    CHECK_EQ(std::string{fake().live()}.find("registered"), std::string::npos);
    CHECK_EQ(std::string{fake().faults()}, "");
  }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  // The fake has a kernel of every name; the test defines its effect.
  std::shared_ptr<const KernelLibrary> gate_kernels() const {
    auto library = KernelLibrary::create(device, Fatbin{.name = "gate", .bytes = kCode});
    CHECK(library.ok());
    return library.take();
  }

  void open(std::uint32_t segments = 0) {
    gate->set_credit(gate->passed() + segments);
    CHECK(gate->open(gate->close_epoch()));
  }
  Verdict pass(Nanoseconds timeout_ns = kShortNs) {
    const auto verdict = borrower->pass(timeout_ns);
    CHECK_EQ(verdict.status().message(), "");
    return verdict.value();
  }
  std::unique_ptr<Graph> capture(int gates) {
    CHECK(Graph::begin_capture(*device, stream->get()).ok());
    for (int i = 0; i < gates; ++i) CHECK(borrower->insert(stream->get()).ok());
    auto graph = Graph::end_capture(device, stream->get());
    CHECK(graph.ok());
    return graph.take();
  }
  Verdict launch(Graph& graph, Nanoseconds timeout_ns = kShortNs) {
    const auto verdict = borrower->launch(graph, timeout_ns);
    CHECK_EQ(verdict.status().message(), "");
    return verdict.value();
  }
  unsigned pending() const { return fake().pending(stream->get()); }

  driver::DevicePtr device;
  std::unique_ptr<Stream> stream;
  std::shared_ptr<HostGate> gate;
  std::unique_ptr<StreamGate> borrower;
};

}  // namespace rose::test
