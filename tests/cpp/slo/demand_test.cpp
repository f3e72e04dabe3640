#include "slo/demand.h"

#include <memory>
#include <thread>
#include <vector>

#include "check.h"

using namespace rose;
using namespace rose::slo;

namespace {

constexpr DemandConfig kConfig{.blocks_per_slab = 4,
                               .block_tokens = 16,
                               .step_tokens = 80,
                               .request_tokens = 1000,
                               .burst_requests = 1,
                               .horizon_ms = 100,
                               .memory_ms = 1000,
                               .epsilon = 0.1,
                               .window = 64};

std::unique_ptr<Demand> make(const DemandConfig& config, std::shared_ptr<const Clock> clock) {
  std::shared_ptr<const LatencyModel> model =
      LatencyModel::create({.prior_ms = {10, 0, 0, 0.5, 0}, .step_tokens = 80}).take();
  return Demand::create(config, std::move(model), std::move(clock)).take();
}

std::uint32_t burst_of(Demand& demand) { return demand.terms(0).take().burst_requests; }

}  // namespace

TEST(the_oldest_sample_leaves_a_full_window) {
  UpperBound bound{0.1, 9};
  for (int i = 1; i <= 8; ++i) bound.add(i);
  CHECK(!bound.bound().has_value());
  bound.add(9);
  CHECK_EQ(bound.bound().value_or(0), 9.0);  // the ninth of nine: 10 * 0.9
  for (int i = 0; i < 9; ++i) bound.add(2);
  CHECK_EQ(bound.bound().value_or(0), 2.0);
  CHECK_EQ(bound.largest(), 2.0);
}

TEST(a_burst_counts_for_as_long_as_it_is_remembered) {
  const auto clock = std::make_shared<ManualClock>();
  const std::unique_ptr<Demand> demand = make(kConfig, clock);
  const std::uint64_t before = demand->blocks(0).take();
  for (int i = 0; i < 20; ++i) demand->arrived(64);
  CHECK_EQ(burst_of(*demand), 20u);
  CHECK(demand->blocks(0).take() > before);
  clock->advance(1'000'000'001);
  CHECK_EQ(burst_of(*demand), 1u);
}

TEST(many_threads_may_tell_and_ask) {
  const std::unique_ptr<Demand> demand = make(kConfig, std::make_shared<BootClock>());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 500; ++n) {
        demand->arrived(8);
        demand->step_ended(5, 4, 1, 16);
        CHECK(demand->blocks(2).ok());
      }
    });
  }
  for (std::thread& one : threads) one.join();
  CHECK(burst_of(*demand) <= 2000u);
}
