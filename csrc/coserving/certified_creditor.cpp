#include "coserving/certified_creditor.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

namespace rose::coserving {

using compute::CloseReason;
using compute::HostGate;
using slo::CertificateLog;
using slo::LogHeader;
using slo::QuantumCertifier;

namespace {

// Shortest wait for the first segment of an offer of slack: a borrower that sleeps on a futex needs
// this long to wake up.
constexpr Nanoseconds kStartNs = 1'000'000;

compute::SlackConfig slack_config(const LogHeader& header) noexcept {
  return {.max_segments = header.max_segments,
          .start_ns = std::max(static_cast<Nanoseconds>(header.signal_ms * 1e6), kStartNs),
          .has_credit = header.has(slo::Mechanism::kCredit)};
}

Status check(const CertifiedCreditorConfig& config, const LogHeader& header) noexcept {
  const double prior_ms = config.segments.prior_ms;
  if (!(prior_ms > 0)) {
    return Status::invalid_argument("segment_prior_ms must be > 0, got " + text_of(prior_ms));
  }
  const double share = config.segments.share;
  if (!(share > 0 && share <= 1)) {
    return Status::invalid_argument("segment_share must lie in (0, 1], got " + text_of(share));
  }
  if (config.poll_ns <= 0) {
    return Status::invalid_argument("poll_ms must be > 0, got " +
                                    text_of(static_cast<double>(config.poll_ns) / 1e6));
  }
  if (header.max_segments == 0) {
    return Status::invalid_argument("the log's max_segments must be > 0, got 0");
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<CertifiedCreditor>> CertifiedCreditor::create(
    const std::shared_ptr<HostGate>& gate, std::shared_ptr<slo::ServingState> state,
    std::shared_ptr<slo::LatencyModel> model, std::shared_ptr<CertificateLog> log,
    const CertifiedCreditorConfig& config, const std::shared_ptr<const Clock>& clock,
    std::shared_ptr<compute::Watchdog> watchdog) {
  ROSE_TRY(check(config, log->header()));
  auto segments = std::make_shared<SegmentEvidence>(gate, log, clock, config.segments);
  auto certifier = std::make_shared<QuantumCertifier>(std::move(state), std::move(model),
                                                      std::move(log), config.next);
  return std::unique_ptr<CertifiedCreditor>{
      new CertifiedCreditor{gate, certifier, segments, config, clock, std::move(watchdog)}};
}

CertifiedCreditor::CertifiedCreditor(const std::shared_ptr<HostGate>& gate,
                                     const std::shared_ptr<QuantumCertifier>& certifier,
                                     const std::shared_ptr<SegmentEvidence>& segments,
                                     const CertifiedCreditorConfig& config,
                                     const std::shared_ptr<const Clock>& clock,
                                     std::shared_ptr<compute::Watchdog> watchdog)
    : gate_{gate},
      certifier_{certifier},
      segments_{segments},
      idle_policy_{std::make_shared<CertifiedPolicy>(gate, certifier, segments, config.retry_ns,
                                                     Asker::kCreditor)},
      slack_policy_{std::make_shared<CertifiedPolicy>(gate, certifier, segments, config.retry_ns,
                                                      Asker::kServing)},
      creditor_{gate,
                idle_policy_,
                clock,
                {.max_segments = certifier->header().max_segments,
                 .poll_ns = config.poll_ns,
                 .has_credit = certifier->header().has(slo::Mechanism::kCredit)},
                std::move(watchdog)},
      slack_{gate, slack_policy_, clock, slack_config(certifier->header())} {}

Status CertifiedCreditor::start() noexcept {
  slack_.set_stopped(false);
  return creditor_.start();
}

void CertifiedCreditor::stop() noexcept {
  slack_.set_stopped(true);
  creditor_.stop();
}

Nanoseconds CertifiedCreditor::before_step(
    const std::optional<slo::CommittedBatch>& batch) noexcept {
  slack_policy_->commit(batch);
  const Nanoseconds lent_ns = lends_slack() ? slack_.lend() : 0;
  close_for_step();
  return lent_ns;
}

void CertifiedCreditor::close_for_step() noexcept {
  gate_->close(gate_->is_open() ? CloseReason::kStep : gate_->close_reason());
}

std::optional<compute::Offer> CertifiedCreditor::offer(
    const std::optional<slo::CommittedBatch>& batch) noexcept {
  slack_policy_->commit(batch);
  return lends_slack() ? slack_.offer() : std::nullopt;
}

std::uint32_t CertifiedCreditor::certify() noexcept {
  const std::scoped_lock one_decides{gate_->granting()};
  CertifiedPolicy& policy = lends_slack() ? *slack_policy_ : *idle_policy_;
  return policy.decide({.close_epoch = gate_->close_epoch(), .passed = gate_->passed()}).segments;
}

bool CertifiedCreditor::lends_slack() const noexcept {
  return certifier_->header().may(slo::HarvestMode::kSlack);
}

}  // namespace rose::coserving
