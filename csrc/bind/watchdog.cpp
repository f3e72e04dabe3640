// The watchdog for Python. It records in the certificate log each segment that it lets through.
#include <pybind11/pybind11.h>

#include <memory>

#include "bind/clock.h"
#include "bind/status.h"
#include "bind/unlocked.h"
#include "compute/watchdog.h"
#include "slo/certificate_log.h"

namespace rose::bind {

namespace py = pybind11;
using compute::HostGate;
using compute::Watchdog;
using slo::CertificateLog;

namespace {

class LoggedOpening final : public compute::ForcedLog {
 public:
  explicit LoggedOpening(std::shared_ptr<CertificateLog> log) noexcept : log_{std::move(log)} {}
  void forced(std::uint32_t passed, std::uint32_t close_epoch) noexcept override {
    log_->append(slo::ForcedRecord{.passed = passed, .close_epoch = close_epoch});
  }

 private:
  std::shared_ptr<CertificateLog> log_;
};

std::shared_ptr<Watchdog> create_watchdog(std::shared_ptr<HostGate> gate,
                                          std::shared_ptr<CertificateLog> log, double after_ms,
                                          std::shared_ptr<Clock> clock) {
  std::shared_ptr<compute::ForcedLog> record;
  if (log != nullptr) record = std::make_shared<LoggedOpening>(std::move(log));
  return std::make_shared<Watchdog>(std::move(gate), std::move(record),
                                    clock_or_boot(std::move(clock)),
                                    ns_of_ms(after_ms, "after_ms"));
}

}  // namespace

void bind_watchdog(py::module_& module) {
  // The watchdog may be the last owner of the log, and ~CertificateLog joins a thread.
  UnlockedClass<Watchdog, std::shared_ptr<Watchdog>>(module, "Watchdog")
      .def(py::init(&create_watchdog), py::arg("gate").none(false), py::kw_only(),
           py::arg("log") = py::none(), py::arg("after_ms"), py::arg("clock") = py::none())
      // The watchdog's lock is never held during a wait, so these calls keep the GIL.
      .def("enter", &Watchdog::enter)
      .def("leave", &Watchdog::leave)
      .def("look", &Watchdog::look)
      .def_property_readonly("is_declared", &Watchdog::is_declared);
}

}  // namespace rose::bind
