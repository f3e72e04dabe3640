// Closes the gate when a request arrives, and wakes the creditor when serving becomes idle.
#pragma once

#include <memory>

#include "compute/host_gate.h"
#include "slo/certificate_log.h"
#include "slo/serving_state.h"

namespace rose::coserving {

// 1. When busy() returns, the gate is closed, in a close epoch that no earlier decision has read.
//    ServingState counts the request before it calls busy(). So a decision that did not count the
//    request cannot open the gate any more: see Creditor, invariant 3.
// 2. Neither call grants anything. Both ring the gate's demand: busy() only if the gate was open.
// 3. Without slo::Mechanism::kEarlyClose in the log's header, busy() does nothing.
//
// Thread rule: any thread; nothing waits and no lock is taken.
class GateListener final : public slo::ServingListener {
 public:
  GateListener(std::shared_ptr<compute::HostGate> gate, const slo::LogHeader& header) noexcept;

  void busy() noexcept override;
  void idle() noexcept override;

 private:
  std::shared_ptr<compute::HostGate> gate_;
  bool closes_early_;
};

}  // namespace rose::coserving
