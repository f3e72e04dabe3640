// A slab between its grant and the end of its scrub, whatever happens in between.
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "memory/arbiter.h"
#include "memory/attachment.h"
#include "memory/host_memfd.h"

using namespace rose;
using namespace rose::memory;

namespace {

constexpr Nanoseconds kSecond = 1'000'000'000;
constexpr PoolShape kShape{4096, 4, 2};
constexpr std::byte kSecret{0x5a};

// Host memory, and an event in the middle of a scrub.
class Interrupted final : public PageBackend {
 public:
  explicit Interrupted(std::shared_ptr<std::function<Status()>> happens) noexcept
      : happens_{std::move(happens)} {}
  bool is_on_host() const noexcept override { return true; }
  Result<VaRange> reserve(std::size_t size) noexcept override { return inner_.reserve(size); }
  void release_range(VaRange range) noexcept override { inner_.release_range(range); }
  Result<PageHandle> create(std::size_t size) noexcept override { return inner_.create(size); }
  void release(PageHandle handle) noexcept override { inner_.release(handle); }
  Status map(std::byte* at, PageHandle handle) noexcept override { return inner_.map(at, handle); }
  void unmap(VaRange range) noexcept override { inner_.unmap(range); }
  Status clear(VaRange range) noexcept override { return inner_.clear(range); }
  Status scrub(VaRange range) noexcept override {
    if (*happens_ != nullptr) ROSE_TRY(std::exchange(*happens_, nullptr)());
    return inner_.scrub(range);
  }
  Result<FileDescriptor> export_fd(PageHandle handle) noexcept override {
    return inner_.export_fd(handle);
  }
  Result<PageHandle> import_fd(FileDescriptor fd, std::size_t size) noexcept override {
    return inner_.import_fd(std::move(fd), size);
  }

 private:
  HostMemfd inner_;
  const std::shared_ptr<std::function<Status()>> happens_;
};

struct Parties {
  std::shared_ptr<std::function<Status()>> in_scrub = std::make_shared<std::function<Status()>>();
  std::shared_ptr<ManualClock> clock = std::make_shared<ManualClock>();
  std::shared_ptr<Arbiter> arbiter =
      Arbiter::create(
          Pool::create(std::make_unique<Interrupted>(in_scrub), kShape, kShape.slab_bytes).take(),
          clock, nullptr)
          .take();
  PartitionId serving = arbiter->add_partition("serving", 1, 4).take();
  PartitionId rollout = arbiter->add_partition("rollout", 0, 3).take();
  std::shared_ptr<TenantLine> line = arbiter->add_tenant(rollout, Notify::kWhenClean).take();
  std::unique_ptr<Attachment> tenant =
      Attachment::create_mapped(
          kShape, {arbiter->share_ledger().take(), duplicate_fd(line->mailbox.fd()).take(),
                   duplicate_fd(line->to_arbiter.get()).take(),
                   duplicate_fd(line->to_tenant.get()).take(), FileDescriptor{}})
          .take();
  BlockAllocator* blocks = tenant->add_allocator({1024, kShape.slab_bytes, 0}).take();

  Parties() {
    std::memset(arbiter->pool().data(), static_cast<int>(kSecret), arbiter->pool().size_bytes());
  }

  std::vector<SlabId> grant(std::int32_t n) {
    return arbiter->grant(rollout, n, 60 * kSecond).take().grant.slabs;
  }
  RevocationId revoke(std::int32_t n) { return revoke(n, serving); }
  RevocationId revoke(std::int32_t n, PartitionId taker) {
    return arbiter->revoke(rollout, n, clock->now_ns() + kSecond, taker).take();
  }
  RevocationProgress progress(RevocationId id) { return arbiter->poll(id).take(); }
  bool is_clean(SlabId slab) const {
    const std::byte* at = arbiter->pool().data() + kShape.slab_base(slab);
    for (std::size_t i = 0; i < kShape.slab_bytes; ++i) {
      if (at[i] != std::byte{0}) return false;
    }
    return true;
  }
  bool is_called_late() const {
    pollfd rung{line->late.get(), POLLIN, 0};
    return poll_for({&rung, 1}, 0);
  }
  std::int32_t quarantined() const { return arbiter->snapshot().quarantined; }
  bool is_sound() const { return arbiter->check_invariants().ok(); }
};

}  // namespace

TEST(tenant_is_notified_of_a_slab_when_it_is_zeros) {
  Parties all;
  const std::vector<SlabId> slabs = all.grant(2);
  CHECK(all.tenant->reach(slabs).ok());
  CHECK_EQ(all.blocks->free_blocks(), 0);
  CHECK(all.arbiter->clean(all.rollout, slabs[0]).take());
  CHECK(all.is_clean(slabs[0]));
  CHECK(!all.is_clean(slabs[1]));
  CHECK_EQ(all.tenant->look().take().admitted, 1);
  CHECK_EQ(all.blocks->free_blocks(), 4);
  CHECK(all.is_sound());
}

TEST(slab_that_is_not_mapped_here_gives_no_block) {
  Parties all;
  const std::vector<SlabId> slabs = all.grant(2);
  for (const SlabId slab : slabs) CHECK(all.arbiter->clean(all.rollout, slab).take());
  CHECK_EQ(all.tenant->look().take().admitted, 0);
  CHECK_EQ(all.blocks->free_blocks(), 0);
  CHECK(all.tenant->reach({&slabs[1], 1}).ok());
  CHECK_EQ(all.blocks->free_blocks(), 4);
  CHECK(!all.tenant->reach(std::vector<SlabId>{4}).ok());
}

TEST(slab_that_came_back_is_to_be_unmapped_before_it_is_used_again) {
  Parties all;
  const std::vector<SlabId> slabs = all.grant(1);
  CHECK(all.arbiter->clean(all.rollout, slabs[0]).take());
  CHECK(all.tenant->reach(slabs).ok());
  CHECK(all.tenant->retire().take().empty());
  CHECK_EQ(all.progress(all.revoke(1, kNobody)).returned, 1);
  CHECK(all.tenant->retire().take() == slabs);
  CHECK(all.tenant->retire().take().empty());
  CHECK(all.grant(1) == slabs);
  CHECK(all.arbiter->clean(all.rollout, slabs[0]).take());
  CHECK_EQ(all.tenant->look().take().admitted, 0);
}

TEST(slab_in_use_is_not_to_be_unmapped_while_it_is_revoked) {
  Parties all;
  const std::vector<SlabId> slabs = all.grant(1);
  CHECK(all.arbiter->clean(all.rollout, slabs[0]).take());
  CHECK(all.tenant->reach(slabs).ok());
  std::vector<BlockId> ids(1);
  CHECK(all.blocks->alloc(ids));
  const RevocationId id = all.revoke(1);
  CHECK(all.tenant->retire().take().empty());
  CHECK(all.blocks->free(ids).ok());
  CHECK_EQ(all.progress(id).returned, 1);
  CHECK(all.tenant->retire().take() == slabs);
}

TEST(slab_that_is_not_clean_yet_is_taken_back_without_asking) {
  Parties all;
  all.grant(2);
  const Snapshot lent = all.arbiter->snapshot();
  CHECK_EQ(lent.partitions[1].revocable_now, 2);
  CHECK_EQ(all.progress(all.revoke(2)).returned, 2);
  CHECK(!all.arbiter->clean(all.rollout, 0).take());
  CHECK(!all.is_clean(0));  // it is serving's
  CHECK(all.is_sound());
}

TEST(slab_waits_for_its_scrub_before_it_goes_back) {
  Parties all;
  all.grant(2);
  RevocationId id = 0;
  *all.in_scrub = [&]() -> Status {
    id = all.revoke(2);
    CHECK_EQ(all.progress(id).returned, 1);
    CHECK_EQ(all.progress(id).pending, 1);
    CHECK(all.is_sound());
    return {};
  };
  CHECK(!all.arbiter->clean(all.rollout, 0).take());
  CHECK_EQ(all.progress(id).returned, 2);
  CHECK(!all.is_clean(1));
  CHECK_EQ(all.tenant->look().take().admitted, 0);
  CHECK(all.is_sound());
}

TEST(slab_of_a_late_scrub_is_nobodys_and_its_tenant_is_not_blamed) {
  Parties all;
  all.grant(2);
  *all.in_scrub = [] { return Status::deadline_exceeded("the stream has work left"); };
  CHECK(all.arbiter->clean(all.rollout, 0).status().code() == Code::kDeadlineExceeded);
  const RevocationId id = all.revoke(2);
  all.clock->advance(2 * kSecond);
  CHECK_EQ(all.progress(id).fenced, 1);
  CHECK(!all.is_called_late());
  CHECK_EQ(all.quarantined(), 1);
  CHECK(all.arbiter->lose_tenant(all.rollout).ok());
  CHECK_EQ(all.quarantined(), 1);  // its death proves nothing about rose's own stream
  CHECK(all.arbiter->reopen_partition(all.rollout, 3).code() == Code::kUnavailable);
  CHECK_EQ(all.arbiter->prove_completion(all.rollout).take(), 1);
  CHECK(all.arbiter->reopen_partition(all.rollout, 3).ok());
  CHECK(all.is_sound());
}

TEST(tenant_that_dies_in_a_scrub_leaves_its_slab_when_that_is_done) {
  Parties all;
  all.grant(2);
  *all.in_scrub = [&]() -> Status {
    CHECK(all.arbiter->lose_tenant(all.rollout).ok());
    CHECK_EQ(all.arbiter->take(all.serving, 4).take().size(), 3);
    CHECK_EQ(all.arbiter->prove_completion(all.rollout).take(), 0);
    CHECK(all.is_sound());
    return {};
  };
  CHECK(!all.arbiter->clean(all.rollout, 0).take());
  CHECK_EQ(all.quarantined(), 0);
  CHECK_EQ(all.arbiter->take(all.serving, 4).take().size(), 1);
  CHECK(all.is_sound());
}

TEST(slab_whose_scrub_failed_can_be_made_clean_again) {
  Parties all;
  all.grant(1);
  *all.in_scrub = [] { return Status::out_of_memory("on purpose"); };
  CHECK(all.arbiter->clean(all.rollout, 0).status().code() == Code::kOutOfMemory);
  CHECK(all.arbiter->clean(all.rollout, 0).take());
  CHECK(all.is_sound());
}

TEST(slab_that_its_tenant_may_use_is_not_scrubbed) {
  Parties all;
  all.grant(1);
  CHECK(all.arbiter->clean(all.rollout, 0).take());
  CHECK(all.arbiter->clean(all.rollout, 0).status().code() == Code::kInvalidArgument);
  CHECK(all.arbiter->clean(all.rollout, 4).status().code() == Code::kInvalidArgument);
  CHECK(!all.arbiter->clean(all.rollout, 3).take());  // never granted
}
