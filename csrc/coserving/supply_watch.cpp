#include "coserving/supply_watch.h"

#include <utility>

namespace rose::coserving {

SupplyWatch::SupplyWatch(std::shared_ptr<memory::Arbiter> arbiter, memory::PartitionId serving,
                         std::shared_ptr<slo::Demand> demand,
                         std::shared_ptr<const slo::ServingState> state) noexcept
    : arbiter_{std::move(arbiter)},
      serving_{serving},
      demand_{std::move(demand)},
      state_{std::move(state)} {}

Result<bool> SupplyWatch::is_short(std::int64_t taking) noexcept {
  std::int64_t demand_blocks = 0;
  if (!is_over_.load()) {
    const Result<std::uint64_t> demand =
        demand_->blocks(static_cast<std::uint32_t>(state_->pending()));
    if (!demand.ok()) return demand.status();
    demand_blocks = static_cast<std::int64_t>(demand.value());
  }
  const auto blocks_per_slab = static_cast<std::int32_t>(demand_->config().blocks_per_slab);
  return arbiter_->watch(serving_, demand_blocks, blocks_per_slab, taking);
}

}  // namespace rose::coserving
