#include "coserving/certified_admission.h"

#include <utility>

#include "slo/admission.h"

namespace rose::coserving {

CertifiedAdmission::CertifiedAdmission(memory::PartitionId lender_id,
                                       std::shared_ptr<slo::Demand> demand,
                                       std::shared_ptr<slo::CertificateLog> log,
                                       std::shared_ptr<slo::ServingState> serving) noexcept
    : Admission{lender_id},
      demand_{std::move(demand)},
      log_{std::move(log)},
      serving_{std::move(serving)} {}

Result<std::int32_t> CertifiedAdmission::admit(const memory::LoanRequest& request) noexcept {
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

}  // namespace rose::coserving
