// Loans under certificates, and the steps of serving, for Python.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/clock.h"
#include "bind/features.h"
#include "bind/status.h"
#include "bind/unlocked.h"
#include "coserving/certified_admission.h"
#include "coserving/move_log.h"
#include "coserving/serving_steps.h"
#include "coserving/supply_watch.h"

namespace rose::bind {

namespace py = pybind11;
using coserving::CertifiedAdmission;
using coserving::MoveLog;
using coserving::ServingSteps;
using coserving::StepBegun;
using coserving::SupplyWatch;

namespace {

using Slots = std::vector<std::uint32_t>;
// The fields of StepBegun, with lent_ns in milliseconds.
using Begun = std::tuple<double, Nanoseconds, Nanoseconds, std::uint32_t, bool>;

std::unique_ptr<ServingSteps> create_steps(
    std::shared_ptr<compute::HostGate> gate, std::shared_ptr<slo::ServingState> state,
    std::shared_ptr<slo::LatencyModel> model, std::shared_ptr<slo::CertificateLog> log,
    std::shared_ptr<slo::Demand> demand, std::shared_ptr<SupplyWatch> supply,
    std::shared_ptr<coserving::CertifiedCreditor> creditor, std::shared_ptr<Clock> clock) {
  return std::make_unique<ServingSteps>(
      coserving::ServingParts{.clock = clock_or_boot(std::move(clock)),
                              .gate = std::move(gate),
                              .state = std::move(state),
                              .model = std::move(model),
                              .log = std::move(log),
                              .demand = std::move(demand),
                              .supply = std::move(supply),
                              .creditor = std::move(creditor)});
}

// If slack is not lent, the call takes less time than a release of the GIL.
template <typename Call>
Begun lend(const ServingSteps& self, const Call& call) {
  const StepBegun begun = self.lends_slack() ? unlocked(call) : call();
  return {ms_of(begun.lent_ns), begun.from_ns, begun.until_ns, begun.passed, begun.is_blocked};
}

Begun begin_step(ServingSteps& self, const Batch& values, const Slots& slots, bool lends) {
  const auto batch = batch_of(values, slots);
  return lend(self, [&] { return self.begin(batch, lends); });
}

Begun commit_step(ServingSteps& self, const Batch& values, const Slots& slots) {
  const auto batch = batch_of(values, slots);
  return lend(self, [&] { return self.commit(batch); });
}

std::pair<Nanoseconds, bool> end_step(ServingSteps& self, const FeatureValues& batch,
                                      std::int64_t began_ns, double lent_ms, double blocked_ms,
                                      std::uint32_t passed) {
  const coserving::StepEnded ended = take(self.end({.batch = features_of(batch, "batch"),
                                                    .began_ns = began_ns,
                                                    .lent_ms = lent_ms,
                                                    .blocked_ms = blocked_ms,
                                                    .passed = passed}));
  return {ended.actual_ns, ended.is_short};
}

}  // namespace

void bind_coserving(py::module_& module) {
  py::class_<MoveLog, memory::MoveObserver, std::shared_ptr<MoveLog>>(module, "MoveLog")
      .def(py::init<std::shared_ptr<slo::CertificateLog>>(), py::arg("log").none(false));
  py::class_<CertifiedAdmission, memory::Admission>(module, "CertifiedAdmission")
      .def(py::init<memory::PartitionId, std::shared_ptr<slo::Demand>,
                    std::shared_ptr<slo::CertificateLog>, std::shared_ptr<slo::ServingState>>(),
           py::arg("lender"), py::arg("demand").none(false), py::kw_only(),
           py::arg("log").none(false), py::arg("serving").none(false));
  py::class_<SupplyWatch, std::shared_ptr<SupplyWatch>>(module, "SupplyWatch")
      .def(py::init<std::shared_ptr<memory::Arbiter>, memory::PartitionId,
                    std::shared_ptr<slo::Demand>, std::shared_ptr<slo::ServingState>>(),
           py::arg("arbiter").none(false), py::arg("serving"), py::arg("demand").none(false),
           py::arg("state").none(false))
      .def(
          "is_short",
          [](SupplyWatch& self, std::int64_t taking) { return take(self.is_short(taking)); },
          py::kw_only(), py::arg("taking") = 0)
      .def("end", &SupplyWatch::end);
  // May be the last owner of the creditor, which joins a thread.
  UnlockedClass<ServingSteps>(module, "ServingSteps")
      .def(py::init(&create_steps), py::arg("gate").none(false), py::arg("state").none(false),
           py::arg("model").none(false), py::arg("log").none(false), py::kw_only(),
           py::arg("demand").none(false), py::arg("supply").none(false),
           py::arg("creditor").none(false), py::arg("clock") = py::none())
      .def("set_lending", &ServingSteps::set_lending, py::arg("is_lending"))
      .def("begin", &begin_step, py::arg("batch"), py::arg("slots"), py::kw_only(),
           py::arg("lends"))
      .def("commit", &commit_step, py::arg("batch"), py::arg("slots"))
      .def(
          "emitted",
          [](ServingSteps& self, const Slots& slots, bool is_late) {
            self.emitted(slots, is_late);
          },
          py::arg("slots"), py::kw_only(), py::arg("is_late"))
      .def("end", &end_step, py::arg("batch"), py::kw_only(), py::arg("began_ns"),
           py::arg("lent_ms"), py::arg("blocked_ms"), py::arg("passed"))
      .def("abandon", &ServingSteps::abandon);
}

}  // namespace rose::bind
