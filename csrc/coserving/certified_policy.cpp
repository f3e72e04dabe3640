#include "coserving/certified_policy.h"

#include <utility>

#include "compute/durations.h"

namespace rose::coserving {

using compute::CreditDecision;
using compute::CreditRequest;
using slo::HarvestMode;

namespace {

constexpr std::uint32_t kNoLimit = ~std::uint32_t{0};

}  // namespace

CertifiedPolicy::CertifiedPolicy(std::shared_ptr<const compute::HostGate> gate,
                                 std::shared_ptr<slo::QuantumCertifier> certifier,
                                 PolicyConfig config, Asker asker) noexcept
    : gate_{std::move(gate)}, certifier_{std::move(certifier)}, config_{config}, asker_{asker} {}

CreditDecision CertifiedPolicy::decide(const CreditRequest& request) noexcept {
  slo::QuantumGrant grant = ask(request, segment_upper_ms(), kNoLimit);
  if (grant.segments == 0 && is_starved(request)) {
    grant = ask(request, config_.segment_prior_ms, 1);
  }
  return {
      .segments = grant.segments, .retry_after_ns = config_.retry_ns, .until_ns = grant.until_ns};
}

double CertifiedPolicy::segment_upper_ms() const noexcept {
  const Nanoseconds recent_ns = gate_->recent_segment_ns(config_.segment_share);
  return recent_ns > 0 ? static_cast<double>(recent_ns) / 1e6 : config_.segment_prior_ms;
}

// While no request is live, each quantum has mode idle, whichever thread asks.
HarvestMode CertifiedPolicy::mode_of_now() const noexcept {
  if (certifier_->serving().pending() == 0) return HarvestMode::kIdle;
  const bool is_slack = asker_ == Asker::kServing && certifier_->header().may(HarvestMode::kSlack);
  return is_slack ? HarvestMode::kSlack : HarvestMode::kIdle;
}

slo::QuantumGrant CertifiedPolicy::ask(const CreditRequest& request, double segment_ms,
                                       std::uint32_t most) noexcept {
  return certifier_->decide({.mode = mode_of_now(),
                             .close_epoch = request.close_epoch,
                             .passed = request.passed,
                             .outstanding = request.outstanding,
                             .segment_upper_ms = segment_ms,
                             .most = most,
                             .is_request_expected = gate_->expects_arrival(),
                             .committed = committed_});
}

// If recent segments were too long for the targets, every further segment is refused, even if the
// long segments were exceptions. Invariant 2 ends that.
bool CertifiedPolicy::is_starved(const CreditRequest& request) const noexcept {
  return request.outstanding == 0 && mode_of_now() == HarvestMode::kIdle &&
         certifier_->last_refusal() == slo::QuantumRefusal::kSloAtRisk &&
         gate_->since_segment_ns() > compute::DurationRing::kRecentNs;
}

}  // namespace rose::coserving
