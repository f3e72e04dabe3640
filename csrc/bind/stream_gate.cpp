// StreamGate and its probe for Python. As in bind/driver.cpp, nothing here holds the GIL during a
// driver call or a wait.
#include "compute/stream_gate.h"

#include <pybind11/native_enum.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <bit>
#include <memory>
#include <optional>
#include <vector>

#include "bind/clock.h"
#include "bind/status.h"
#include "bind/stream.h"
#include "bind/unlocked.h"
#include "compute/gate_probe.h"
#include "coserving/borrower_step.h"

namespace rose::bind {

namespace py = pybind11;
using compute::GateChoice;
using compute::GateKind;
using compute::GateProbe;
using compute::HostGate;
using compute::KindProbe;
using compute::StreamGate;
using compute::Verdict;
using driver::Device;
using driver::Graph;

namespace {

std::unique_ptr<StreamGate> create_stream_gate(const std::shared_ptr<Device>& device,
                                               std::shared_ptr<HostGate> gate,
                                               std::uintptr_t stream, GateKind kind,
                                               std::uint32_t window, std::uint32_t launches,
                                               double drain_timeout_ms) {
  const compute::StreamGateConfig config{
      .window = window,
      .launches = launches,
      .drain_ns = ns_of_ms(drain_timeout_ms, "drain_timeout_ms")};
  return take_unlocked(
      [&] { return StreamGate::create(device, std::move(gate), stream_of(stream), kind, config); });
}

void set_launches(StreamGate& gate, std::uint32_t launches) { check(gate.set_launches(launches)); }

std::optional<Verdict> start_at_stream_gate(StreamGate& gate, const memory::Attachment& tenant,
                                            double timeout_ms) {
  const Nanoseconds timeout_ns = ns_of_ms(timeout_ms, "timeout_ms");
  return take_unlocked([&] { return coserving::start_step(tenant, gate, timeout_ns); });
}

Verdict pass_stream_gate(StreamGate& gate, double timeout_ms) {
  const Nanoseconds timeout_ns = ns_of_ms(timeout_ms, "timeout_ms");
  return take_unlocked([&] { return gate.pass(timeout_ns); });
}

Verdict launch_graph(StreamGate& gate, Graph& graph, double timeout_ms) {
  const Nanoseconds timeout_ns = ns_of_ms(timeout_ms, "timeout_ms");
  return take_unlocked([&] { return gate.launch(graph, timeout_ns); });
}

Verdict settle_gate(StreamGate& gate, double timeout_ms) {
  const Nanoseconds timeout_ns = ns_of_ms(timeout_ms, "timeout_ms");
  return unlocked([&] { return gate.settle(timeout_ns); });
}

void insert_gate(StreamGate& gate, std::uintptr_t stream) {
  check_unlocked([&] { return gate.insert(stream_of(stream)); });
}

std::unique_ptr<Graph> make_abortable(StreamGate& gate,
                                      const std::vector<std::uintptr_t>& segments) {
  std::vector<CUgraph> captured;
  for (const std::uintptr_t one : segments) captured.push_back(std::bit_cast<CUgraph>(one));
  return take_unlocked([&] { return gate.make_abortable(captured); });
}

GateProbe probe(const std::shared_ptr<Device>& device, std::uintptr_t borrower_stream,
                const std::vector<std::uintptr_t>& serving_streams,
                std::optional<int> max_connections, bool in_one_process, bool try_all) {
  compute::ProbeRequest request;
  request.borrower = stream_of(borrower_stream);
  for (const std::uintptr_t one : serving_streams) request.serving.push_back(stream_of(one));
  request.max_connections = max_connections;
  request.in_one_process = in_one_process;
  request.try_all = try_all;
  return unlocked([&] { return compute::probe_gates(device, request); });
}

void bind_probe(py::module_& module) {
  py::class_<KindProbe>(module, "KindProbe")
      .def_readonly("is_usable", &KindProbe::is_usable)
      .def_readonly("is_stuck", &KindProbe::is_stuck)
      .def_readonly("why", &KindProbe::why)
      .def_readonly("wake_us", &KindProbe::wake_us)
      .def_readonly("alias_us", &KindProbe::alias_us);

  py::class_<GateChoice>(module, "GateChoice")
      .def_readonly("kind", &GateChoice::kind)
      .def_readonly("why", &GateChoice::why);

  py::class_<GateProbe>(module, "GateProbe")
      .def_readonly("memop", &GateProbe::memop)
      .def_readonly("kernel", &GateProbe::kernel)
      .def_readonly("choice", &GateProbe::choice);

  module.def("probe_gates", &probe, py::arg("device").none(false), py::kw_only(),
             py::arg("borrower_stream"), py::arg("serving_streams"), py::arg("max_connections"),
             py::arg("in_one_process"), py::arg("try_all") = false);
}

}  // namespace

void bind_stream_gate(py::module_& module) {
  py::native_enum<GateKind>(module, "GateKind", "enum.Enum")
      .value("HOST", GateKind::kHost)
      .value("MEMOP", GateKind::kMemop)
      .value("KERNEL", GateKind::kKernel)
      .finalize();

  // ~StreamGate waits for the device.
  UnlockedClass<StreamGate>(module, "StreamGate")
      .def_static("create", &create_stream_gate, py::arg("device").none(false),
                  py::arg("gate").none(false), py::kw_only(), py::arg("stream"), py::arg("kind"),
                  py::arg("window") = 2, py::arg("launches") = 1,
                  py::arg("drain_timeout_ms") = 1000.0)
      .def("start", &start_at_stream_gate, py::arg("tenant").none(false), py::kw_only(),
           py::arg("timeout_ms"))
      .def("begin_step", &StreamGate::begin_step)
      .def("pass_", &pass_stream_gate, py::kw_only(), py::arg("timeout_ms"))
      .def("settle", &settle_gate, py::kw_only(), py::arg("timeout_ms"))
      .def("leave", &StreamGate::leave, gil_released())
      .def("end_step", &StreamGate::end_step, gil_released())
      .def("insert", &insert_gate, py::arg("stream"))
      .def("make_abortable", &make_abortable, py::arg("segments"))
      .def("launch", &launch_graph, py::arg("graph"), py::kw_only(), py::arg("timeout_ms"))
      .def_property_readonly_static("LAUNCH_QUEUE",
                                    [](const py::object&) { return StreamGate::kLaunchQueue; })
      .def_property_readonly_static("GATE_LAUNCHES",
                                    [](const py::object&) { return StreamGate::kGateLaunches; })
      .def_property_readonly_static("LONGEST_SEGMENT",
                                    [](const py::object&) { return StreamGate::kLongestSegment; })
      .def("set_launches", &set_launches, py::arg("launches"))
      .def_property_readonly("window", &StreamGate::window)
      .def_property_readonly("kind", &StreamGate::kind)
      .def_property_readonly("enqueued", &StreamGate::enqueued)
      .def_property_readonly("in_flight", &StreamGate::in_flight)
      .def_property_readonly("overdue",
                             [](const StreamGate& gate) { return gate.gate().overdue(); });

  bind_probe(module);
}

}  // namespace rose::bind
