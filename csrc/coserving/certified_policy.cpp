#include "coserving/certified_policy.h"

#include <utility>

namespace rose::coserving {

using compute::CreditDecision;
using compute::CreditRequest;
using slo::HarvestMode;

CertifiedPolicy::CertifiedPolicy(std::shared_ptr<const compute::HostGate> gate,
                                 std::shared_ptr<slo::QuantumCertifier> certifier,
                                 std::shared_ptr<SegmentEvidence> segments, Nanoseconds retry_ns,
                                 Asker asker) noexcept
    : gate_{std::move(gate)},
      certifier_{std::move(certifier)},
      segments_{std::move(segments)},
      retry_ns_{retry_ns},
      asker_{asker} {}

CreditDecision CertifiedPolicy::decide(const CreditRequest& request) noexcept {
  const SegmentLength length = segments_->length();
  slo::QuantumGrant grant = ask(request, length, mode_of_now());
  if (grant.segments > 0) {
    segments_->fits();
  } else if (is_trial_due(request)) {
    grant = ask(request, length, HarvestMode::kTrial);
    if (grant.segments > 0) segments_->tried(request.passed);
  }
  return {.segments = grant.segments, .retry_after_ns = retry_ns_, .until_ns = grant.until_ns};
}

// While no request is live, each quantum has mode idle, whichever thread asks.
HarvestMode CertifiedPolicy::mode_of_now() const noexcept {
  if (certifier_->serving().pending() == 0) return HarvestMode::kIdle;
  const bool is_slack = asker_ == Asker::kServing && certifier_->header().may(HarvestMode::kSlack);
  return is_slack ? HarvestMode::kSlack : HarvestMode::kIdle;
}

slo::QuantumGrant CertifiedPolicy::ask(const CreditRequest& request, const SegmentLength& length,
                                       HarvestMode mode) noexcept {
  return certifier_->decide({.mode = mode,
                             .close_epoch = request.close_epoch,
                             .passed = request.passed,
                             .outstanding = request.outstanding,
                             .segment_upper_ms = length.upper_ms,
                             .expected_ms = length.is_measured ? segments_->prior_ms() : 0,
                             .is_request_expected = gate_->expects_arrival(),
                             .committed = committed_});
}

bool CertifiedPolicy::is_trial_due(const CreditRequest& request) const noexcept {
  return asker_ == Asker::kCreditor && request.outstanding == 0 &&
         certifier_->last_refusal() == slo::QuantumRefusal::kSegmentTooLong && segments_->may_try();
}

}  // namespace rose::coserving
