// Keeps the arbiter's watch of serving's supply at the demand of the present load.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "memory/arbiter.h"
#include "slo/demand.h"
#include "slo/serving_state.h"

namespace rose::coserving {

// 1. is_short() sets the watched demand to D(T) of the requests that are live, so an allocation
//    that leaves less than D(T) rings the arbiter's bell.
// 2. After end() the watched demand is 0, and serving is never short.
//
// Thread rule: any thread.
class SupplyWatch {
 public:
  SupplyWatch(std::shared_ptr<memory::Arbiter> arbiter, memory::PartitionId serving,
              std::shared_ptr<slo::Demand> demand,
              std::shared_ptr<const slo::ServingState> state) noexcept;

  // Returns whether serving is short, or will be after taking `taking` blocks: see
  // Arbiter::watch().
  Result<bool> is_short(std::int64_t taking) noexcept;
  void end() noexcept { is_over_.store(true); }

 private:
  const std::shared_ptr<memory::Arbiter> arbiter_;
  const memory::PartitionId serving_;
  const std::shared_ptr<slo::Demand> demand_;
  const std::shared_ptr<const slo::ServingState> state_;
  std::atomic<bool> is_over_{false};
};

}  // namespace rose::coserving
