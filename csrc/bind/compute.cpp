// HostGate for Python.
#include <fcntl.h>
#include <pybind11/native_enum.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <memory>

#include "bind/clock.h"
#include "bind/status.h"
#include "bind/unlocked.h"
#include "compute/host_gate.h"
#include "coserving/borrower_step.h"

namespace rose::bind {

namespace py = pybind11;
using compute::CloseReason;
using compute::GateStats;
using compute::HostGate;
using compute::Verdict;

namespace {

std::shared_ptr<HostGate> create_gate(std::uint32_t first_segment, std::shared_ptr<Clock> clock) {
  return take(HostGate::create(clock_or_boot(std::move(clock)), first_segment));
}

std::shared_ptr<HostGate> attach_gate(int fd, std::shared_ptr<Clock> clock) {
  const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) raise(Status::invalid_argument("fd " + std::to_string(fd) + " is not open"));
  return take(HostGate::attach(FileDescriptor{copy}, clock_or_boot(std::move(clock))));
}

// Keeps the GIL if the gate is open, and releases it for a wait.
Verdict pass_gate(HostGate& gate, double timeout_ms) {
  if (const auto verdict = gate.try_pass()) return *verdict;
  const Nanoseconds timeout_ns = ns_of_ms(timeout_ms, "timeout_ms");
  return unlocked([&] { return gate.pass(timeout_ns); });
}

std::optional<Verdict> start_at_gate(HostGate& gate, const memory::Attachment& tenant,
                                     double timeout_ms) {
  return coserving::start_step(tenant, gate, [&] { return pass_gate(gate, timeout_ms); });
}

void expect_arrival(HostGate& gate, double within_ms) {
  gate.expect_arrival(ns_of_ms(within_ms, "within_ms"));
}

py::object wait_parked(HostGate& gate, double timeout_ms) {
  const Nanoseconds timeout_ns = ns_of_ms(timeout_ms, "timeout_ms");
  const std::optional<Nanoseconds> waited_ns =
      unlocked([&] { return gate.wait_parked(timeout_ns); });
  return waited_ns ? py::cast(ms_of(*waited_ns)) : py::none();
}

std::vector<double> drain_segments_ms(HostGate& gate) {
  std::vector<double> out;
  for (const Nanoseconds ns : gate.drain_segments()) out.push_back(ms_of(ns));
  return out;
}

template <auto Part, auto Field>
double quantile_ms(const GateStats& stats) {
  return ms_of(stats.*Part.*Field);
}

}  // namespace

void bind_compute(py::module_& module) {
  py::native_enum<Verdict>(module, "Verdict", "enum.Enum")
      .value("PASSED", Verdict::kPassed)
      .value("ABORTED", Verdict::kAborted)
      .value("TIMED_OUT", Verdict::kTimedOut)
      .value("SHUT_DOWN", Verdict::kShutDown)
      .finalize();

  py::native_enum<CloseReason>(module, "CloseReason", "enum.Enum")
      .value("NEVER_OPENED", CloseReason::kNeverOpened)
      .value("ARRIVAL", CloseReason::kArrival)
      .value("REVOCATION", CloseReason::kRevocation)
      .value("GAVE_BACK", CloseReason::kGaveBack)
      .value("SHUT_DOWN", CloseReason::kShutDown)
      .value("BORROWER_GONE", CloseReason::kBorrowerGone)
      .value("STEP", CloseReason::kStep)
      .finalize();

  py::class_<GateStats>(module, "GateStats")
      .def_property_readonly("segments", [](const GateStats& s) { return s.segments.count; })
      .def_property_readonly("segment_ms_p50",
                             &quantile_ms<&GateStats::segments, &Quantiles::p50_ns>)
      .def_property_readonly("segment_ms_p99",
                             &quantile_ms<&GateStats::segments, &Quantiles::p99_ns>)
      .def_property_readonly("segment_ms_max",
                             &quantile_ms<&GateStats::segments, &Quantiles::max_ns>)
      .def_property_readonly("caught", [](const GateStats& s) { return s.pause_latency.count; })
      .def_property_readonly("pause_ms_p50",
                             &quantile_ms<&GateStats::pause_latency, &Quantiles::p50_ns>)
      .def_property_readonly("pause_ms_p99",
                             &quantile_ms<&GateStats::pause_latency, &Quantiles::p99_ns>)
      .def_readonly("pauses", &GateStats::pauses)
      .def_readonly("aborts", &GateStats::aborts)
      .def_readonly("forced_opens", &GateStats::forced_opens)
      .def_property_readonly("blocked_ms", [](const GateStats& s) { return ms_of(s.blocked_ns); });

  py::class_<HostGate, std::shared_ptr<HostGate>>(module, "HostGate")
      .def(py::init(&create_gate), py::kw_only(), py::arg("first_segment") = 0,
           py::arg("clock") = py::none())
      .def_static("attach", &attach_gate, py::arg("fd"), py::kw_only(),
                  py::arg("clock") = py::none())
      .def("fileno", [](const HostGate& gate) { return gate.fd().get(); })
      .def("start", &start_at_gate, py::arg("tenant").none(false), py::kw_only(),
           py::arg("timeout_ms"))
      .def("begin_step", &HostGate::begin_step)
      .def("try_pass", &HostGate::try_pass)
      .def("pass_", &pass_gate, py::kw_only(), py::arg("timeout_ms"))
      // On a host, a segment starts as soon as its gate is passed, so there is nothing to wait for.
      .def(
          "settle", [](const HostGate&, double) { return Verdict::kPassed; }, py::kw_only(),
          py::arg("timeout_ms"))
      .def("leave", &HostGate::leave)
      .def("end_step", &HostGate::end_step)
      .def("close", &HostGate::close, py::arg("reason"))
      .def("expect_arrival", &expect_arrival, py::kw_only(), py::arg("within_ms"))
      .def("wait_parked", &wait_parked, py::kw_only(), py::arg("timeout_ms"))
      .def("renew", [](HostGate& gate) { check(gate.renew()); })
      .def("abort_step", &HostGate::abort_step)
      .def("open", &HostGate::open, py::arg("expected_epoch"))
      .def("grant", &HostGate::grant, py::arg("segments_ahead"))
      .def("shut_down", &HostGate::shut_down)
      .def("abandon", &HostGate::abandon)
      .def("is_shut_down", &HostGate::is_shut_down)
      .def("is_open", &HostGate::is_open)
      .def("is_running", &HostGate::is_running)
      .def("is_in_step", &HostGate::is_in_step)
      .def("is_abort_asked", &HostGate::is_abort_asked)
      // Increases each time the borrower looks at the gate and finds it still closed.
      .def_property_readonly("demand", &HostGate::demand)
      .def_property_readonly("close_epoch", &HostGate::close_epoch)
      .def_property_readonly("close_reason", &HostGate::close_reason)
      .def_property_readonly("passed", &HostGate::passed)
      .def_property_readonly("credit_left", &HostGate::credit_left)
      .def("stats", &HostGate::stats)
      .def("drain_segments_ms", &drain_segments_ms);
}

}  // namespace rose::bind
