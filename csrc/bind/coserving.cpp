// The arbiter's admission and its observer of moves for Python.
#include <pybind11/pybind11.h>

#include <memory>

#include "coserving/certified_admission.h"
#include "coserving/move_log.h"

namespace rose::bind {

namespace py = pybind11;
using coserving::CertifiedAdmission;
using coserving::MoveLog;

void bind_moves(py::module_& module) {
  py::class_<MoveLog, memory::MoveObserver, std::shared_ptr<MoveLog>>(module, "MoveLog")
      .def(py::init<std::shared_ptr<slo::CertificateLog>>(), py::arg("log").none(false));
  py::class_<CertifiedAdmission, memory::Admission>(module, "CertifiedAdmission")
      .def(py::init<memory::PartitionId, std::shared_ptr<slo::Demand>,
                    std::shared_ptr<slo::CertificateLog>, std::shared_ptr<slo::ServingState>>(),
           py::arg("lender"), py::arg("demand").none(false), py::kw_only(),
           py::arg("log").none(false), py::arg("serving").none(false));
}

}  // namespace rose::bind
