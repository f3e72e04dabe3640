#include "coserving/gate_listener.h"

#include <utility>

namespace rose::coserving {

GateListener::GateListener(std::shared_ptr<compute::HostGate> gate,
                           const slo::LogHeader& header) noexcept
    : gate_{std::move(gate)}, closes_early_{header.has(slo::Mechanism::kEarlyClose)} {}

void GateListener::busy() noexcept {
  if (!closes_early_) return;
  const bool was_open = gate_->is_open();
  gate_->close(compute::CloseReason::kArrival);
  gate_->arrived();
  // A thread that lends slack sleeps until the slack ends, and this arrival ends it.
  if (was_open) gate_->ring_demand();
}

void GateListener::idle() noexcept { gate_->ring_demand(); }

}  // namespace rose::coserving
