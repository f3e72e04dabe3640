// Turns a certificate into credit at the gate.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "compute/creditor.h"
#include "compute/host_gate.h"
#include "coserving/segment_evidence.h"
#include "slo/quantum.h"

namespace rose::coserving {

// The thread that asks a policy for credit. Both may grant idle quanta; serving's thread may also
// grant slack.
enum class Asker : std::uint8_t { kCreditor, kServing };

// 1. decide() grants exactly the segments of the certificate that the log has recorded for this
//    decision; without a certificate it grants nothing.
// 2. The length of a segment in a certificate is that of the evidence, without exception. If this
//    length does not fit, the creditor's policy asks for a trial, at times that the evidence sets.
//    Otherwise a few long segments would end lending for ever.
//
// Thread rule: as CreditPolicy. commit() belongs to the thread that asks.
class CertifiedPolicy final : public compute::CreditPolicy {
 public:
  CertifiedPolicy(std::shared_ptr<const compute::HostGate> gate,
                  std::shared_ptr<slo::QuantumCertifier> certifier,
                  std::shared_ptr<SegmentEvidence> segments, Nanoseconds retry_ns,
                  Asker asker) noexcept;

  compute::CreditDecision decide(const compute::CreditRequest& request) noexcept override;

  // Sets the committed batch for the next decisions. The slots of `batch` must outlive them.
  void commit(const std::optional<slo::CommittedBatch>& batch) noexcept { committed_ = batch; }

 private:
  slo::HarvestMode mode_of_now() const noexcept;
  slo::QuantumGrant ask(const compute::CreditRequest& request, const SegmentLength& length,
                        slo::HarvestMode mode) noexcept;
  bool is_trial_due(const compute::CreditRequest& request) const noexcept;

  std::shared_ptr<const compute::HostGate> gate_;
  std::shared_ptr<slo::QuantumCertifier> certifier_;
  std::shared_ptr<SegmentEvidence> segments_;
  Nanoseconds retry_ns_;  // time between a refusal and the next decision
  Asker asker_;
  std::optional<slo::CommittedBatch> committed_;
};

}  // namespace rose::coserving
