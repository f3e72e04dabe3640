// Joins memory and slo: a loan needs a certificate, and the log records every move of slabs.
#include <pybind11/pybind11.h>

#include <memory>
#include <utility>

#include "memory/arbiter.h"
#include "slo/admission.h"
#include "slo/certificate_log.h"
#include "slo/demand.h"
#include "slo/serving_state.h"

namespace rose::bind {

namespace py = pybind11;
using memory::Move;

namespace {

// Called under the arbiter's mutex, so the log has the moves in the order in which they happened.
class MoveLog final : public memory::MoveObserver {
 public:
  explicit MoveLog(std::shared_ptr<slo::CertificateLog> log) noexcept : log_{std::move(log)} {}

  void on_move(const Move& move) noexcept override {
    // A lost record makes the log unhealthy, and then nothing more is granted.
    static_cast<void>(log_->append_move(move.from_partition, move.to_partition,
                                        static_cast<std::uint32_t>(move.slabs), move.lease_id,
                                        move.epoch, static_cast<std::uint32_t>(move.kind)));
  }

 private:
  std::shared_ptr<slo::CertificateLog> log_;
};

// Certifies loans. `demand` measures what serving may need. admit() adds the supply and the
// borrower's request, under the arbiter's mutex.
class CertifiedAdmission final : public memory::Admission {
 public:
  CertifiedAdmission(memory::PartitionId lender_id, std::shared_ptr<slo::Demand> demand,
                     std::shared_ptr<slo::CertificateLog> log,
                     std::shared_ptr<slo::ServingState> serving) noexcept
      : Admission{lender_id},
        demand_{std::move(demand)},
        log_{std::move(log)},
        serving_{std::move(serving)} {}

  Result<std::int32_t> admit(const memory::LoanRequest& request) noexcept override {
    // These terms contain no running requests: admission_certificate() adds their number under the
    // log's mutex, where no arrival can be recorded meanwhile.
    const Result<slo::AdmissionTerms> demanded = demand_->terms(0);
    if (!demanded.ok()) return demanded.status();
    slo::AdmissionTerms terms = demanded.value();
    terms.epoch = request.epoch;
    terms.to_partition = static_cast<std::uint32_t>(request.borrower);
    terms.slabs = static_cast<std::uint32_t>(request.slabs);
    terms.free_serving_blocks = static_cast<std::uint32_t>(request.free_blocks);
    terms.unowned_slabs = static_cast<std::uint32_t>(request.unowned);
    const auto certificate = slo::admission_certificate(terms, log_.get(), serving_.get());
    if (!certificate.ok()) return certificate.status();
    return certificate.value() ? static_cast<std::int32_t>(terms.slabs) : 0;
  }

 private:
  std::shared_ptr<slo::Demand> demand_;
  std::shared_ptr<slo::CertificateLog> log_;
  std::shared_ptr<slo::ServingState> serving_;
};

}  // namespace

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
