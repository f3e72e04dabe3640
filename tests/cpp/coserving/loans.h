// Serving and a borrower that share a pool, with loans under certificates.
#pragma once

#include <cstdint>
#include <memory>

#include "check.h"
#include "coserving/certified_admission.h"
#include "coserving/move_log.h"
#include "memory/host_memfd.h"
#include "scene.h"

namespace rose::test {

using namespace rose::memory;

inline constexpr Nanoseconds kTtl = 60'000 * kMs;

// Sixteen slabs of four blocks; serving owns two.
struct Loans {
  explicit Loans(const LogHeader& header = kIdleOnly,
                 std::shared_ptr<const Clock> clock = std::make_shared<ManualClock>())
      : scene{header, std::move(clock)} {
    Pool pool = Pool::create(std::make_unique<HostMemfd>(), {4096, 16, 2}).take();
    arbiter =
        Arbiter::create(std::move(pool), scene.clock, std::make_shared<MoveLog>(scene.log)).take();
    serving = arbiter->add_partition("serving", 2, 16).take();
    rollout = arbiter->add_partition("rollout", 0, 14).take();
    CHECK(arbiter->take(serving, 2).ok());
    CHECK(arbiter->add_allocator(serving, {1024, 4096, 0}).ok());
    CHECK(arbiter->add_allocator(rollout, {1024, 8192, 0}).ok());
    demand = Demand::create({.blocks_per_slab = 4,
                             .block_tokens = 16,
                             .step_tokens = 320,
                             .request_tokens = 320,
                             .burst_requests = 0,
                             .horizon_ms = 10,
                             .memory_ms = 1000,
                             .epsilon = 0.1,
                             .window = 64},
                            known_model(), scene.clock)
                 .take();
    admission = std::make_unique<CertifiedAdmission>(serving, demand, scene.log, scene.state);
  }

  std::int32_t lend(std::int32_t slabs) {
    const GrantAnswer answer = arbiter->grant(rollout, slabs, kTtl, admission.get()).take();
    if (answer.refusal) CHECK_EQ(*answer.refusal, GrantRefusal::kAtRisk);
    return static_cast<std::int32_t>(answer.grant.slabs.size());
  }

  Scene scene;
  std::shared_ptr<Arbiter> arbiter;
  PartitionId serving{kNobody};
  PartitionId rollout{kNobody};
  std::shared_ptr<Demand> demand;
  std::unique_ptr<CertifiedAdmission> admission;
};

}  // namespace rose::test
