// Opens the gate to a borrower, but only for segments that a certificate covers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/status.h"
#include "compute/creditor.h"
#include "compute/slack_lender.h"
#include "compute/watchdog.h"
#include "coserving/certified_policy.h"
#include "slo/quantum.h"

namespace rose::coserving {

struct CertifiedCreditorConfig {
  slo::NextRequest next;  // the worst request that could arrive right after a grant
  SegmentConfig segments;
  Nanoseconds retry_ns{0};  // time between a refusal and the next decision
  Nanoseconds poll_ns{0};   // longest sleep of the creditor's thread
};

// The creditor's thread, which grants quanta while serving is idle, and serving's own lender of
// slack, with one certifier for both. The limits are those in the log's header.
//
// 1. Each segment that this object lets start is covered by a QUANTUM in the log, which was
//    recorded before the gate opened. The watchdog's segments are not: they have FORCED records.
// 2. An opening fails if the gate was closed after the decision had begun, as by an arrival.
// 3. When before_step() returns, the gate is closed. Before it closed, the gate may have been open
//    for the segments of one or more certificates, until the last certificate's time ended. A
//    segment may still run: then the caller waits for it, by segments().wait().
// 4. After stop() nothing is granted until start().
//
// Thread rule: serving's thread calls offer(), withdraw(), before_step() and certify(). Any thread
// may call the others. stop() and the destructor join the creditor's thread.
class CertifiedCreditor {
 public:
  // InvalidArgument if a duration or share is out of range, or the log's header allows no segments.
  static Result<std::unique_ptr<CertifiedCreditor>> create(
      const std::shared_ptr<compute::HostGate>& gate, std::shared_ptr<slo::ServingState> state,
      std::shared_ptr<slo::LatencyModel> model, std::shared_ptr<slo::CertificateLog> log,
      const CertifiedCreditorConfig& config, const std::shared_ptr<const Clock>& clock,
      std::shared_ptr<compute::Watchdog> watchdog = nullptr);
  CertifiedCreditor(const CertifiedCreditor&) = delete;
  CertifiedCreditor& operator=(const CertifiedCreditor&) = delete;

  // As Creditor::start().
  Status start() noexcept;
  void stop() noexcept;

  // Lends serving's slack, then closes the gate. Call it before each step of serving. Returns the
  // time for which it lent. `batch` is the step's batch if it is fixed already.
  Nanoseconds before_step(const std::optional<slo::CommittedBatch>& batch) noexcept;
  // Closes the gate even if it is closed already, so that an opening decided earlier fails.
  void close_for_step() noexcept;
  // Offers serving's slack once, without waiting; nothing if no slack may be lent.
  std::optional<compute::Offer> offer(const std::optional<slo::CommittedBatch>& batch) noexcept;
  void withdraw() noexcept { slack_.withdraw(); }
  // Records the certificate that would be granted now, and grants nothing. Returns its segments.
  std::uint32_t certify() noexcept;
  // True if the log's header allows mode slack. Otherwise before_step() waits for nothing.
  bool lends_slack() const noexcept;

  compute::Creditor& creditor() noexcept { return creditor_; }
  const slo::QuantumCertifier& certifier() const noexcept { return *certifier_; }
  SegmentEvidence& segments() const noexcept { return *segments_; }

 private:
  CertifiedCreditor(const std::shared_ptr<compute::HostGate>& gate,
                    const std::shared_ptr<slo::QuantumCertifier>& certifier,
                    const std::shared_ptr<SegmentEvidence>& segments,
                    const CertifiedCreditorConfig& config,
                    const std::shared_ptr<const Clock>& clock,
                    std::shared_ptr<compute::Watchdog> watchdog);

  std::shared_ptr<compute::HostGate> gate_;
  std::shared_ptr<slo::QuantumCertifier> certifier_;
  std::shared_ptr<SegmentEvidence> segments_;
  std::shared_ptr<CertifiedPolicy> idle_policy_;   // asked by the creditor's thread
  std::shared_ptr<CertifiedPolicy> slack_policy_;  // asked by serving's thread
  compute::Creditor creditor_;
  compute::SlackLender slack_;
};

}  // namespace rose::coserving
