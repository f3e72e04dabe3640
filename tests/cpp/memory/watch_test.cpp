// A tenant's demand, checked at every allocation and every grant.
#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "memory/arbiter.h"
#include "memory/host_memfd.h"

using namespace rose;
using namespace rose::memory;

namespace {

constexpr std::size_t kSlab = 4096;
constexpr Nanoseconds kLong = 30'000'000'000;

// Admits at most `most` slabs, and records the supply.
struct Admits final : Admission {
  explicit Admits(PartitionId lender_id, std::int32_t most_slabs)
      : Admission{lender_id}, most{most_slabs} {}
  Result<std::int32_t> admit(const LoanRequest& supply) noexcept override {
    asked = supply;
    return std::min(supply.slabs, most);
  }
  std::int32_t most;
  LoanRequest asked;
};

// Eight slabs of four blocks; serving owns three, two are lent.
struct Device {
  std::unique_ptr<Arbiter> arbiter;
  PartitionId serving;
  PartitionId rollout;
  BlockAllocator* own;

  Device() {
    Pool pool = Pool::create(std::make_unique<HostMemfd>(), {kSlab, 8, 2}).take();
    arbiter = Arbiter::create(std::move(pool), std::make_shared<BootClock>(), nullptr).take();
    serving = arbiter->add_partition("serving", 0, 8).take();
    rollout = arbiter->add_partition("rollout", 0, 8).take();
    own = arbiter->add_allocator(serving, {kSlab / 4, 0, 0}).take();
    CHECK(arbiter->take(serving, 3).ok());
    CHECK(!grant(2).refusal.has_value());
  }
  ~Device() { CHECK(arbiter->check_invariants().ok()); }

  GrantAnswer grant(std::int32_t n, Admission* admission = nullptr) {
    return arbiter->grant(rollout, n, kLong, admission).take();
  }
  bool watch(std::int64_t demand, std::int64_t taking = 0) {
    return arbiter->watch(serving, demand, 4, taking).take();
  }
  void alloc(std::size_t n) {
    std::vector<BlockId> ids(n);
    CHECK(own->alloc(ids));
  }
  std::uint32_t rung() { return arbiter->listen(0, 0); }
};

}  // namespace

TEST(supply_is_free_blocks_and_unowned_slabs) {
  Device device;  // 12 free blocks, 3 unowned slabs: 24
  CHECK(!device.watch(24));
  CHECK(device.watch(25));
  CHECK(!device.watch(20, 4));
  CHECK(device.watch(20, 5));
  CHECK(!device.arbiter->is_short(device.serving, 4).value());
  CHECK(device.arbiter->is_short(device.serving, 5).value());
  CHECK(!device.arbiter->is_short(device.rollout, 100).value());
}

TEST(the_bell_rings_in_the_allocation_that_leaves_too_little_and_once) {
  Device device;
  CHECK(!device.watch(20));
  device.alloc(4);
  CHECK_EQ(device.rung(), 0U);
  device.alloc(1);
  CHECK_EQ(device.rung(), 1U);
  device.alloc(1);
  CHECK_EQ(device.rung(), 1U);
  CHECK(device.watch(20));
  device.alloc(1);
  CHECK_EQ(device.rung(), 2U);
}

TEST(a_reservation_rings_too) {
  Device device;
  CHECK(!device.watch(20));
  CHECK(device.own->reserve(5).has_value());
  CHECK_EQ(device.rung(), 1U);
}

TEST(a_move_of_slabs_changes_what_the_next_allocation_finds) {
  Device device;
  CHECK(!device.watch(20));
  CHECK(!device.grant(1).refusal.has_value());  // 20 are left
  device.alloc(1);
  CHECK_EQ(device.rung(), 1U);
}

TEST(nobody_is_short_while_nothing_is_lent_or_nobody_asked) {
  Device device;
  CHECK(!device.watch(0));
  device.alloc(12);
  CHECK(device.watch(24));
  CHECK(device.arbiter->revoke(device.rollout, 2, kLong, kNobody).ok());
  CHECK(!device.watch(24));
  CHECK_EQ(device.rung(), 0U);
}

TEST(an_admission_is_asked_with_what_is_true_at_the_grant) {
  Device device;
  device.alloc(2);
  Admits admits{device.serving, 2};
  const std::uint64_t epoch = device.arbiter->epoch();
  const GrantAnswer answer = device.grant(3, &admits);
  CHECK_EQ(answer.grant.slabs.size(), 2U);
  CHECK_EQ(answer.grant.lease_epoch, epoch + 1);
  CHECK_EQ(admits.asked.epoch, epoch);
  CHECK_EQ(admits.asked.borrower, device.rollout);
  CHECK_EQ(admits.asked.slabs, 3);
  CHECK_EQ(admits.asked.unowned, 3);
  CHECK_EQ(admits.asked.free_blocks, 10);
  admits.most = 0;
  CHECK(device.grant(1, &admits).refusal == GrantRefusal::kAtRisk);
}

TEST(a_grant_that_would_leave_less_than_is_needed_is_refused) {
  Device device;
  Admits admits{device.serving, 8};
  CHECK(!device.watch(16));
  CHECK(device.grant(3, &admits).refusal == GrantRefusal::kAtRisk);
  CHECK(!device.grant(2, &admits).refusal.has_value());
  CHECK(!device.watch(16));
}

TEST(who_listens_is_woken_by_an_allocation_of_another_thread) {
  Device device;
  CHECK(!device.watch(20));
  std::atomic<std::uint32_t> heard{0};
  std::thread listener{[&] { heard = device.arbiter->listen(0, kLong); }};
  device.alloc(5);
  listener.join();
  CHECK_EQ(heard.load(), 1U);
}

TEST(grants_and_allocations_that_race_never_leave_less_than_is_needed_unheard) {
  for (int round = 0; round < 50; ++round) {
    Device device;
    CHECK(!device.watch(13));
    std::thread taker{[&] {
      for (int i = 0; i < 3; ++i) device.alloc(1);
    }};
    Admits admits{device.serving, 1};
    for (int i = 0; i < 3; ++i) static_cast<void>(device.grant(1, &admits));
    taker.join();
    // A grant left at least 13; an allocation that left less has rung.
    CHECK(!device.arbiter->is_short(device.serving, 0).value() || device.rung() == 1);
  }
}

TEST(demands_without_a_meaning_are_invalid) {
  Device device;
  CHECK_EQ(device.arbiter->watch(device.serving, -1, 4, 0).status().code(), Code::kInvalidArgument);
  CHECK_EQ(device.arbiter->watch(device.serving, 1, 0, 0).status().code(), Code::kInvalidArgument);
  CHECK_EQ(device.arbiter->watch(7, 1, 4, 0).status().code(), Code::kInvalidArgument);
  CHECK_EQ(device.arbiter->is_short(-1, 0).status().code(), Code::kInvalidArgument);
}
