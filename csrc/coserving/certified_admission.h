// Lets the arbiter lend slabs, but only with a certificate that serving will not miss them.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "memory/arbiter.h"
#include "slo/certificate_log.h"
#include "slo/demand.h"
#include "slo/serving_state.h"

namespace rose::coserving {

// 1. admit() returns the slabs of an ADMISSION that the log has recorded, or 0. The record precedes
//    the arbiter's move, because the arbiter holds its mutex from the request until the grant.
// 2. The certificate counts every arrival that the log recorded before it.
//
// Thread rule: as Admission.
class CertifiedAdmission final : public memory::Admission {
 public:
  // `demand` measures what serving may need; the arbiter's request has the supply.
  CertifiedAdmission(memory::PartitionId lender_id, std::shared_ptr<slo::Demand> demand,
                     std::shared_ptr<slo::CertificateLog> log,
                     std::shared_ptr<slo::ServingState> serving) noexcept;

  Result<std::int32_t> admit(const memory::LoanRequest& request) noexcept override;

 private:
  std::shared_ptr<slo::Demand> demand_;
  std::shared_ptr<slo::CertificateLog> log_;
  std::shared_ptr<slo::ServingState> serving_;
};

}  // namespace rose::coserving
