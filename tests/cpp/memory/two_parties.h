// An arbiter and a tenant over real shared words, in one process.
#pragma once

#include <memory>
#include <vector>

#include "check.h"
#include "memory/arbiter.h"
#include "memory/attachment.h"
#include "memory/host_memfd.h"

namespace rose::test {

using namespace rose::memory;

inline constexpr Nanoseconds kSecond = 1'000'000'000;

// Four slabs of four blocks; serving has a reserve of one, the tenant a limit of three.
struct TwoParties {
  static constexpr PoolShape kShape{4096, 4, 2};
  static constexpr std::size_t kBlock = 1024;

  bool is_here{false};  // Whether the tenant is attached as in the arbiter's own process.

  std::shared_ptr<ManualClock> clock = std::make_shared<ManualClock>();
  std::shared_ptr<Arbiter> arbiter =
      Arbiter::create(Pool::create(std::make_unique<HostMemfd>(), kShape).take(), clock, nullptr)
          .take();
  PartitionId serving = arbiter->add_partition("serving", 1, 4).take();
  PartitionId rollout = arbiter->add_partition("rollout", 0, 3).take();
  std::shared_ptr<TenantLine> line = arbiter->add_tenant(rollout).take();
  LedgerView ledger = LedgerView::open(arbiter->share_ledger().take()).take();
  std::unique_ptr<Attachment> tenant = (is_here ? Attachment::create_here(arbiter, rollout)
                                                : Attachment::create(pool_again(), parts()))
                                           .take();
  BlockAllocator* blocks = tenant->add_allocator({kBlock, kShape.slab_bytes, 0}).take();
  std::vector<BlockId> held{};
  RevocationId revocation{0};

  Pool pool_again() const {
    return Pool::attach(std::make_unique<HostMemfd>(), arbiter->pool().share().take()).take();
  }
  AttachmentParts parts() const {
    return {arbiter->share_ledger().take(), duplicate_fd(line->mailbox.fd()).take(),
            duplicate_fd(line->to_arbiter.get()).take(), duplicate_fd(line->to_tenant.get()).take(),
            FileDescriptor{}};
  }

  bool grant(std::int32_t n) {
    return !arbiter->grant(rollout, n, 60 * kSecond).take().refusal.has_value();
  }
  void revoke(std::int32_t n, PartitionId taker) {
    revocation = arbiter->revoke(rollout, n, clock->now_ns() + kSecond, taker).take();
  }
  bool alloc(std::size_t n) {
    std::vector<BlockId> ids(n);
    if (!blocks->alloc(ids)) return false;
    held.insert(held.end(), ids.begin(), ids.end());
    return true;
  }
  void free_all() {
    CHECK(blocks->free(held).ok());
    held.clear();
  }
};

}  // namespace rose::test
