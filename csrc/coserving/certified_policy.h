// Turns a certificate into credit at the gate.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "compute/creditor.h"
#include "compute/host_gate.h"
#include "slo/quantum.h"

namespace rose::coserving {

struct PolicyConfig {
  double segment_prior_ms{0};  // estimate of a segment's duration before the first one is measured
  double segment_share{1};     // share of recent segments that are no longer than the estimate
  Nanoseconds retry_ns{0};     // time between a refusal and the next decision
};

// The thread that asks a policy for credit. Both may grant idle quanta; serving's thread may also
// grant slack.
enum class Asker : std::uint8_t { kCreditor, kServing };

// 1. decide() grants exactly the segments of the certificate that the log has recorded for this
//    decision; without a certificate it grants nothing.
// 2. The duration of a segment in a certificate is segment_upper_ms(), with one exception. If that
//    duration was refused, nothing has run for DurationRing::kRecentNs, and serving is idle, one
//    segment may run with the prior as its duration. Otherwise a few long segments would end
//    lending for ever.
//
// Thread rule: as CreditPolicy. commit() belongs to the thread that asks.
class CertifiedPolicy final : public compute::CreditPolicy {
 public:
  CertifiedPolicy(std::shared_ptr<const compute::HostGate> gate,
                  std::shared_ptr<slo::QuantumCertifier> certifier, PolicyConfig config,
                  Asker asker) noexcept;

  compute::CreditDecision decide(const compute::CreditRequest& request) noexcept override;

  // Sets the committed batch for the next decisions. The slots of `batch` must outlive them.
  void commit(const std::optional<slo::CommittedBatch>& batch) noexcept { committed_ = batch; }

  double segment_upper_ms() const noexcept;

 private:
  slo::HarvestMode mode_of_now() const noexcept;
  slo::QuantumGrant ask(const compute::CreditRequest& request, double segment_ms,
                        std::uint32_t most) noexcept;
  bool is_starved(const compute::CreditRequest& request) const noexcept;

  std::shared_ptr<const compute::HostGate> gate_;
  std::shared_ptr<slo::QuantumCertifier> certifier_;
  PolicyConfig config_;
  Asker asker_;
  std::optional<slo::CommittedBatch> committed_;
};

}  // namespace rose::coserving
