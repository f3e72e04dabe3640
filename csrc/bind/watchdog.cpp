// The watchdog for Python.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "bind/clock.h"
#include "bind/status.h"
#include "bind/stream.h"
#include "bind/unlocked.h"
#include "compute/watchdog.h"
#include "coserving/logged_opening.h"

namespace rose::bind {

namespace py = pybind11;
using compute::HostGate;
using compute::Watchdog;
using slo::CertificateLog;

namespace {

std::shared_ptr<Watchdog> create_watchdog(std::shared_ptr<HostGate> gate,
                                          std::shared_ptr<CertificateLog> log, double after_ms,
                                          std::shared_ptr<Clock> clock) {
  std::shared_ptr<compute::ForcedLog> record;
  if (log != nullptr) record = std::make_shared<coserving::LoggedOpening>(std::move(log));
  return std::make_shared<Watchdog>(std::move(gate), std::move(record),
                                    clock_or_boot(std::move(clock)),
                                    ns_of_ms(after_ms, "after_ms"));
}

void watch(Watchdog& watchdog, const std::shared_ptr<driver::Device>& device,
           const std::vector<std::uintptr_t>& streams,
           const std::shared_ptr<slo::ServingState>& state) {
  compute::ServingWork work{
      .device = device, .streams = {}, .progress = coserving::token_progress(state)};
  for (const std::uintptr_t one : streams) work.streams.push_back(stream_of(one));
  watchdog.watch(std::move(work));
}

}  // namespace

void bind_watchdog(py::module_& module) {
  // The watchdog may be the last owner of the log, and ~CertificateLog joins a thread.
  UnlockedClass<Watchdog, std::shared_ptr<Watchdog>>(module, "Watchdog")
      .def(py::init(&create_watchdog), py::arg("gate").none(false), py::kw_only(),
           py::arg("log") = py::none(), py::arg("after_ms"), py::arg("clock") = py::none())
      .def("watch", &watch, py::kw_only(), py::arg("device").none(false), py::arg("streams"),
           py::arg("state").none(false))
      // The watchdog's lock is never held during a wait, so these calls keep the GIL.
      .def("enter", &Watchdog::enter)
      .def("leave", &Watchdog::leave)
      // A look may query serving's streams, and the driver may then wait for a lock.
      .def("look", [](Watchdog& self) { return unlocked([&] { return self.look(); }); })
      .def_property_readonly("undeclared", &Watchdog::undeclared)
      .def_property_readonly("is_declared", &Watchdog::is_declared);
}

}  // namespace rose::bind
