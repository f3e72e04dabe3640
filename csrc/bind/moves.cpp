// Joins memory and slo: a loan needs a certificate, and the log records every move of slabs.
#include <pybind11/pybind11.h>

#include <memory>

#include "memory/arbiter.h"
#include "slo/admission.h"
#include "slo/certificate_log.h"
#include "slo/serving_state.h"

namespace rose::bind {

namespace py = pybind11;
using memory::Move;

namespace {

// Called under the arbiter's mutex, so the log has the moves in their true order.
class MoveLog final : public memory::MoveObserver {
 public:
  explicit MoveLog(std::shared_ptr<slo::CertificateLog> log) noexcept : log_{std::move(log)} {}

  void on_move(const Move& move) noexcept override {
    // A record that is lost makes the log unhealthy, and then nothing is granted any more.
    static_cast<void>(log_->append_move(move.from_partition, move.to_partition,
                                        static_cast<std::uint32_t>(move.slabs), move.lease_id,
                                        move.epoch, static_cast<std::uint32_t>(move.kind)));
  }

 private:
  std::shared_ptr<slo::CertificateLog> log_;
};

// Certifies a loan. The caller's terms say what serving could need; admit() adds what serving has,
// while the arbiter holds its mutex.
class CertifiedAdmission final : public memory::Admission {
 public:
  CertifiedAdmission(memory::PartitionId lender_id, const slo::AdmissionTerms& terms,
                     std::shared_ptr<slo::CertificateLog> log,
                     std::shared_ptr<slo::ServingState> serving) noexcept
      : Admission{lender_id}, terms_{terms}, log_{std::move(log)}, serving_{std::move(serving)} {}

  Result<std::int32_t> admit(const memory::Supply& supply) noexcept override {
    terms_.epoch = supply.epoch;
    terms_.to_partition = static_cast<std::uint32_t>(supply.borrower);
    terms_.slabs = static_cast<std::uint32_t>(supply.slabs);
    terms_.free_serving_blocks = static_cast<std::uint32_t>(supply.free_blocks);
    terms_.unowned_slabs = static_cast<std::uint32_t>(supply.unowned);
    const auto certificate = slo::admission_certificate(terms_, log_.get(), serving_.get());
    if (!certificate.ok()) return certificate.status();
    return certificate.value() ? static_cast<std::int32_t>(terms_.slabs) : 0;
  }

 private:
  slo::AdmissionTerms terms_;
  std::shared_ptr<slo::CertificateLog> log_;
  std::shared_ptr<slo::ServingState> serving_;
};

}  // namespace

void bind_moves(py::module_& module) {
  py::class_<MoveLog, memory::MoveObserver, std::shared_ptr<MoveLog>>(module, "MoveLog")
      .def(py::init<std::shared_ptr<slo::CertificateLog>>(), py::arg("log").none(false));
  py::class_<CertifiedAdmission, memory::Admission>(module, "CertifiedAdmission")
      .def(py::init<memory::PartitionId, const slo::AdmissionTerms&,
                    std::shared_ptr<slo::CertificateLog>, std::shared_ptr<slo::ServingState>>(),
           py::arg("lender"), py::arg("terms"), py::kw_only(), py::arg("log").none(false),
           py::arg("serving").none(false));
}

}  // namespace rose::bind
