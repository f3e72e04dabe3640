// Ownership and loans, one thread.
#include "memory/arbiter.h"

#include <array>
#include <memory>
#include <vector>

#include "check.h"
#include "memory/host_memfd.h"

using rose::Code;
using rose::ManualClock;
using rose::Nanoseconds;
using rose::Result;
using rose::Status;
using rose::memory::Arbiter;
using rose::memory::BlockAllocator;
using rose::memory::BlockId;
using rose::memory::Grant;
using rose::memory::GrantAnswer;
using rose::memory::GrantRefusal;
using rose::memory::HostMemfd;
using rose::memory::is_move;
using rose::memory::kInQuarantine;
using rose::memory::kNobody;
using rose::memory::Move;
using rose::memory::MoveKind;
using rose::memory::MoveObserver;
using rose::memory::PartitionId;
using rose::memory::PinId;
using rose::memory::Pool;
using rose::memory::RenewAnswer;
using rose::memory::RevocationId;
using rose::memory::RevocationProgress;
using rose::memory::SlabId;
using rose::memory::SlabState;
using rose::memory::TicketId;

namespace {

constexpr std::size_t kSlab = 4096;
constexpr Nanoseconds kTtl = 1'000'000;

struct Recorder final : MoveObserver {
  void on_move(const Move& move) noexcept override { moves.push_back(move); }
  std::vector<Move> moves;
};

// Eight slabs of four blocks; serving with a reserve of three, rollout without.
struct Device {
  std::shared_ptr<ManualClock> clock = std::make_shared<ManualClock>();
  std::shared_ptr<Recorder> recorder = std::make_shared<Recorder>();
  std::unique_ptr<Arbiter> arbiter;
  PartitionId serving;
  PartitionId rollout;
  BlockAllocator* blocks;

  Device() {
    Pool pool = Pool::create(std::make_unique<HostMemfd>(), {kSlab, 8, 2}).take();
    arbiter = Arbiter::create(std::move(pool), clock, recorder).take();
    serving = arbiter->add_partition("serving", 3, 8).take();
    rollout = arbiter->add_partition("rollout", 0, 6).take();
    blocks = arbiter->add_allocator(rollout, {kSlab / 4, kSlab, 0}).take();
  }
  ~Device() { CHECK(arbiter->check_invariants().ok()); }

  GrantAnswer ask(std::int32_t n) { return arbiter->grant(rollout, n, kTtl).take(); }
  Grant grant(std::int32_t n) { return ask(n).grant; }
  std::vector<BlockId> alloc(std::size_t n) {
    std::vector<BlockId> ids(n);
    CHECK(blocks->alloc(ids));
    return ids;
  }
  RevocationId revoke(std::int32_t n) {
    return arbiter->revoke(rollout, n, clock->now_ns() + kTtl, serving).take();
  }
  RevocationProgress poll(RevocationId id) { return arbiter->poll(id).take(); }
  std::int32_t held(PartitionId id) {
    return arbiter->snapshot().partitions[static_cast<std::size_t>(id)].partition.held;
  }
};

}  // namespace

TEST(only_moves_of_the_table_are_moves) {
  using enum SlabState;
  int moves = 0;
  for (std::uint32_t from = 0; from < 8; ++from) {
    for (std::uint32_t to = 0; to < 8; ++to) {
      moves += is_move(static_cast<SlabState>(from), static_cast<SlabState>(to)) ? 1 : 0;
    }
  }
  CHECK_EQ(moves, 12);
  CHECK(is_move(kGranted, kRevoking));
  CHECK(!is_move(kGranted, kUnowned));      // never without a revocation
  CHECK(!is_move(kRevoking, kGranted));     // no way back
  CHECK(!is_move(kQuarantined, kGranted));  // fenced is final
  CHECK(!is_move(kReturned, kGranted));     // returned is final
}

TEST(reserves_beyond_the_pool_are_refused) {
  Device device;
  const Status status = device.arbiter->add_partition("third", 6, 8).status();
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK(status.message().find("total reserve of 9 slabs (36864 bytes) exceeds the pool of 8 "
                              "slabs (32768 bytes)") == 0);
  CHECK(device.arbiter->add_partition("bad", 3, 2).status().code() == Code::kInvalidArgument);
  CHECK(device.arbiter->add_partition("third", 5, 8).ok());
}

TEST(reserve_that_is_lent_out_is_unavailable) {
  Device device;
  device.grant(5);
  CHECK(device.arbiter->add_partition("late", 1, 8).status().code() == Code::kUnavailable);
}

TEST(floor_holds_against_the_other_tenant) {
  Device device;
  CHECK(*device.ask(6).refusal == GrantRefusal::kAtRisk);
  CHECK_EQ(device.arbiter->take(device.rollout, 6).take().size(), 5);
  CHECK(*device.ask(1).refusal == GrantRefusal::kAtRisk);
  CHECK_EQ(device.arbiter->take(device.serving, 3).take().size(), 3);
}

TEST(ceiling_holds_against_oneself) {
  Device device;
  CHECK(*device.ask(7).refusal == GrantRefusal::kOverLimit);
  CHECK_EQ(device.arbiter->take(device.serving, 8).take().size(), 8);
  CHECK(*device.ask(1).refusal == GrantRefusal::kPoolEmpty);
}

TEST(give_back_keeps_the_reserve_and_what_is_used) {
  Device device;
  CHECK(device.arbiter->take(device.serving, 5).ok());
  CHECK_EQ(device.arbiter->give_back(device.serving, 8).take(), 2);
  CHECK(device.arbiter->take(device.rollout, 3).ok());
  const std::vector<BlockId> ids = device.alloc(5);
  const PinId pin = device.blocks->pin_blocks(std::span{ids}.first(1)).take();
  CHECK_EQ(device.arbiter->give_back(device.rollout, 8).take(), 1);
  CHECK(device.blocks->free(ids).ok());
  CHECK_EQ(device.arbiter->give_back(device.rollout, 8).take(), 1);  // the other is pinned
  CHECK(device.blocks->unpin(pin).ok());
  CHECK_EQ(device.arbiter->give_back(device.rollout, 8).take(), 1);
}

TEST(idle_slabs_change_hands_inside_the_call) {
  Device device;
  device.grant(4);
  device.alloc(5);  // in two slabs
  const RevocationProgress progress = device.poll(device.revoke(2));
  CHECK_EQ(progress.returned, 2);
  CHECK_EQ(progress.pending, 0);
  CHECK_EQ(device.held(device.serving), 2);
}

TEST(a_grant_leaves_no_more_than_it_may) {
  Device device;
  const auto ask = [&](std::int32_t n, std::int32_t held_max) {
    return device.arbiter->grant(device.rollout, n, kTtl, nullptr, held_max).take();
  };
  CHECK_EQ(ask(5, 2).grant.slabs.size(), 2u);
  CHECK(ask(1, 2).refusal == GrantRefusal::kOverLimit);
  device.alloc(8);
  device.revoke(2);
  device.clock->advance(kTtl);
  CHECK(device.arbiter->expire(kTtl).ok());  // late now, and it counts
  CHECK(ask(1, 2).refusal == GrantRefusal::kOverLimit);
  CHECK_EQ(ask(5, 3).grant.slabs.size(), 1u);
}

TEST(slab_without_a_taker_goes_to_nobody) {
  Device device;
  device.grant(4);
  CHECK(device.arbiter->revoke(device.rollout, 4, 0, kNobody).ok());
  CHECK_EQ(device.arbiter->snapshot().unowned, 8);
}

TEST(taker_at_its_ceiling_gets_nothing) {
  Device device;
  const PartitionId third = device.arbiter->add_partition("third", 0, 1).take();
  device.grant(3);
  CHECK(device.arbiter->revoke(device.rollout, 3, 0, third).ok());
  CHECK_EQ(device.held(third), 1);
  CHECK_EQ(device.arbiter->snapshot().unowned, 7);
}

TEST(slab_needed_for_the_floor_goes_to_nobody) {
  Device device;
  CHECK(device.arbiter->take(device.serving, 3).ok());
  const PartitionId third = device.arbiter->add_partition("third", 2, 8).take();
  CHECK_EQ(device.arbiter->grant(third, 5, kTtl).take().grant.slabs.size(), 5);
  CHECK(device.arbiter->revoke(third, 5, 0, device.rollout).ok());
  CHECK_EQ(device.held(device.rollout), 3);
  CHECK_EQ(device.arbiter->snapshot().unowned, 2);  // the reserve of the third
}

TEST(revoking_slab_gives_no_new_blocks) {
  Device device;
  device.grant(2);
  const std::vector<BlockId> ids = device.alloc(5);  // one slab full, one block in the other
  const SlabId sparse = device.blocks->grid().slab_at(ids.back());
  CHECK_EQ(device.poll(device.revoke(1)).pending, 1);
  CHECK_EQ(device.blocks->free_blocks(), 0);
  std::array<BlockId, 1> one;
  CHECK(!device.blocks->alloc(one));
  CHECK_EQ(device.blocks->used(sparse), 1);
}

TEST(last_free_brings_the_slab_home) {
  Device device;
  device.grant(1);
  const std::vector<BlockId> ids = device.alloc(3);
  const SlabId slab = device.blocks->grid().slab_at(ids[0]);
  const std::uint32_t generation = device.blocks->generation(slab).take();
  const RevocationId id = device.revoke(1);
  CHECK(device.blocks->free(std::span{ids}.first(2)).ok());
  CHECK_EQ(device.poll(id).pending, 1);
  const std::uint64_t epoch = device.arbiter->epoch();
  CHECK(device.blocks->free(std::span{ids}.last(1)).ok());
  CHECK_EQ(device.poll(id).returned, 1);
  CHECK_EQ(device.arbiter->epoch(), epoch + 1);
  CHECK_EQ(device.held(device.serving), 1);
  CHECK(!device.blocks->generation(slab).ok());
  CHECK_EQ(generation, 0);
}

TEST(pinned_slab_never_changes_owner) {
  Device device;
  device.grant(1);
  const std::vector<BlockId> ids = device.alloc(1);
  const PinId first = device.blocks->pin_blocks(ids).take();
  const PinId second = device.blocks->pin_slabs(std::vector<SlabId>{0}).take();
  CHECK(device.blocks->free(ids).ok());
  const RevocationId id = device.revoke(1);
  CHECK_EQ(device.poll(id).pending, 1);
  CHECK(device.blocks->unpin(first).ok());
  CHECK_EQ(device.poll(id).pending, 1);
  CHECK(device.blocks->unpin(second).ok());
  CHECK_EQ(device.poll(id).returned, 1);
  CHECK(device.blocks->unpin(second).code() == Code::kInvalidArgument);
}

TEST(ticket_sets_blocks_aside) {
  Device device;
  device.grant(1);
  const TicketId ticket = *device.blocks->reserve(3);
  CHECK_EQ(device.blocks->free_blocks(), 1);
  CHECK(!device.blocks->reserve(2).has_value());
  std::vector<BlockId> two(2);
  CHECK(device.blocks->commit(ticket, two).take());
  CHECK(!device.blocks->commit(ticket, two).take());  // one is left
  CHECK(device.blocks->cancel(ticket).ok());
  CHECK_EQ(device.blocks->free_blocks(), 2);
  CHECK(device.blocks->cancel(ticket).code() == Code::kInvalidArgument);
  CHECK(device.blocks->commit(ticket, two).status().code() == Code::kInvalidArgument);
}

TEST(ticket_does_not_delay_a_revocation) {
  Device device;
  device.grant(1);
  const TicketId ticket = *device.blocks->reserve(3);
  CHECK_EQ(device.poll(device.revoke(1)).returned, 1);
  std::vector<BlockId> one(1);
  CHECK(!device.blocks->commit(ticket, one).take());
  CHECK(device.blocks->cancel(ticket).ok());
}

TEST(stale_id_is_caught) {
  Device device;
  device.grant(1);
  const std::vector<BlockId> ids = device.alloc(1);
  device.revoke(1);
  CHECK(device.blocks->free(ids).ok());
  const Status again = device.blocks->free(ids);
  CHECK(again.code() == Code::kInvalidArgument);
  CHECK(again.message().find("is stale") != std::string::npos);
}

TEST(generation_moves_on_when_a_slab_comes_back) {
  Device device;
  device.grant(1);
  const std::vector<BlockId> ids = device.alloc(1);
  CHECK(device.arbiter->revoke(device.rollout, 1, kTtl, kNobody).ok());
  CHECK(device.blocks->free(ids).ok());
  device.grant(1);
  CHECK(device.alloc(1) == ids);  // the same id, of another generation
  CHECK_EQ(device.blocks->generation(0).take(), 1U);
  CHECK(device.blocks->free(ids).ok());
}

TEST(late_slab_is_quarantined_until_proven) {
  Device device;
  const Grant grant = device.grant(2);
  const std::vector<BlockId> ids = device.alloc(8);
  const RevocationId id = device.revoke(2);
  device.clock->advance(kTtl - 1);
  CHECK_EQ(device.poll(id).pending, 2);
  device.clock->advance(1);
  CHECK_EQ(device.poll(id).fenced, 2);
  CHECK_EQ(device.arbiter->snapshot().unowned, 6);
  CHECK_EQ(device.arbiter->snapshot().quarantined, 2);
  CHECK_EQ(device.held(device.rollout), 0);
  CHECK_EQ(device.blocks->capacity_blocks(), 0);
  CHECK(device.arbiter->renew(grant.lease_id, grant.lease_epoch, kTtl).take() ==
        RenewAnswer::kOver);
  // First evidence per slab; then the engine's word for the rest.
  CHECK(device.blocks->free(std::span{ids}.first(4)).ok());
  CHECK_EQ(device.arbiter->snapshot().quarantined, 1);
  CHECK_EQ(device.arbiter->prove_completion(device.rollout).take(), 1);
  CHECK_EQ(device.arbiter->snapshot().unowned, 8);
}

TEST(pin_of_a_proven_slab_is_forgotten) {
  Device device;
  device.grant(1);
  const PinId pin = device.blocks->pin_slabs(std::vector<SlabId>{0}).take();
  device.revoke(1);
  device.clock->advance(kTtl);
  CHECK(device.arbiter->expire(0).ok());  // fences it although nobody polls
  CHECK_EQ(device.arbiter->prove_completion(device.rollout).take(), 1);
  device.grant(1);  // the same slab, a new generation
  const PinId fresh = device.blocks->pin_slabs(std::vector<SlabId>{0}).take();
  CHECK(device.blocks->unpin(pin).ok());
  CHECK_EQ(device.poll(device.revoke(1)).pending, 1);
  CHECK(device.blocks->unpin(fresh).ok());
}

TEST(returned_lease_is_final) {
  Device device;
  const Grant grant = device.grant(1);
  CHECK(device.arbiter->renew(grant.lease_id, grant.lease_epoch, kTtl).take() ==
        RenewAnswer::kRenewed);
  CHECK(device.arbiter->renew(grant.lease_id, grant.lease_epoch + 1, kTtl).take() ==
        RenewAnswer::kStaleEpoch);
  device.revoke(1);
  CHECK(device.arbiter->renew(grant.lease_id, grant.lease_epoch, kTtl).take() ==
        RenewAnswer::kOver);
}

TEST(fenced_lease_never_comes_back) {
  Device device;
  const Grant grant = device.grant(2);
  device.alloc(5);
  const Nanoseconds now = device.clock->now_ns();
  const RevocationId id = device.arbiter->revoke(device.rollout, 1, now, kNobody).take();
  CHECK_EQ(device.poll(id).fenced, 1);
  CHECK_EQ(device.held(device.rollout), 1);  // in time, but its holder was late with the other one
  CHECK(device.arbiter->renew(grant.lease_id, grant.lease_epoch, kTtl).take() ==
        RenewAnswer::kOver);
}

TEST(lease_on_its_way_back_is_not_renewed) {
  Device device;
  const Grant grant = device.grant(1);
  device.alloc(1);
  device.revoke(1);
  CHECK(device.arbiter->renew(grant.lease_id, grant.lease_epoch, kTtl).take() ==
        RenewAnswer::kRevoking);
}

TEST(lease_past_its_ttl_is_revoked) {
  Device device;
  const Grant kept = device.grant(1);
  const Grant lost = device.grant(2);
  device.alloc(9);
  device.clock->advance(kTtl - 1);
  CHECK(device.arbiter->renew(kept.lease_id, kept.lease_epoch, kTtl).take() ==
        RenewAnswer::kRenewed);
  device.clock->advance(1);
  CHECK(device.arbiter->renew(lost.lease_id, lost.lease_epoch, kTtl).take() == RenewAnswer::kOver);
  const std::vector<RevocationId> started = device.arbiter->expire(kTtl).take();
  CHECK_EQ(started.size(), 1);
  CHECK_EQ(device.poll(started[0]).wanted, 2);
  CHECK(device.arbiter->expire(kTtl).take().empty());
}

TEST(dropped_partition_leaves_only_what_it_used) {
  Device device;
  device.grant(3);
  CHECK(device.arbiter->take(device.rollout, 1).ok());
  const std::vector<BlockId> ids = device.alloc(5);
  CHECK(device.arbiter->drop_partition(device.rollout).ok());
  CHECK(device.arbiter->drop_partition(device.rollout).ok());
  CHECK_EQ(device.arbiter->snapshot().unowned, 6);
  CHECK_EQ(device.arbiter->snapshot().quarantined, 2);
  CHECK(device.arbiter->take(device.rollout, 1).status().code() == Code::kInvalidArgument);
  CHECK(device.blocks->free(ids).ok());
  CHECK_EQ(device.arbiter->snapshot().unowned, 8);
}

TEST(observer_sees_every_change_in_order) {
  Device device;
  CHECK(device.arbiter->take(device.serving, 1).ok());
  const Grant grant = device.grant(2);
  const std::vector<BlockId> ids = device.alloc(5);
  device.revoke(1);
  CHECK(device.blocks->free(std::span{ids}.last(1)).ok());
  device.revoke(1);
  device.clock->advance(kTtl);
  CHECK(device.arbiter->expire(0).ok());
  CHECK_EQ(device.arbiter->prove_completion(device.rollout).take(), 1);
  const std::vector<Move>& moves = device.recorder->moves;
  CHECK_EQ(moves.size(), 5);
  const std::array kinds{MoveKind::kTake, MoveKind::kGrant, MoveKind::kReturn,
                         MoveKind::kQuarantine, MoveKind::kProve};
  for (std::size_t i = 0; i < moves.size(); ++i) {
    CHECK(moves[i].kind == kinds[i]);
    CHECK_EQ(moves[i].epoch, 2 + i);
  }
  CHECK_EQ(moves[1].slabs, 2);
  CHECK_EQ(moves[2].from_partition, device.rollout);
  CHECK_EQ(moves[2].to_partition, device.serving);
  CHECK_EQ(moves[2].lease_id, grant.lease_id);
  CHECK_EQ(moves[3].to_partition, kInQuarantine);
  CHECK_EQ(moves[4].to_partition, kNobody);
}

TEST(nonsense_is_an_invalid_argument) {
  Device device;
  Arbiter& arbiter = *device.arbiter;
  const auto is_bad = [](const auto& result) {
    return result.status().code() == Code::kInvalidArgument;
  };
  CHECK(is_bad(arbiter.take(9, 1)));
  CHECK(is_bad(arbiter.take(0, -1)));
  CHECK(is_bad(arbiter.give_back(0, -1)));
  CHECK(is_bad(arbiter.grant(0, 0, kTtl)));
  CHECK(is_bad(arbiter.grant(0, 1, 0)));
  CHECK(is_bad(arbiter.renew(1, 1, -1)));
  CHECK(is_bad(arbiter.expire(-1)));
  CHECK(is_bad(arbiter.revoke(0, 0, 0, kNobody)));
  CHECK(is_bad(arbiter.revoke(0, 1, 0, 0)));
  CHECK(is_bad(arbiter.poll(77)));
  CHECK(is_bad(arbiter.prove_completion(-1)));
  CHECK(is_bad(arbiter.add_allocator(device.rollout, {64, 0, 0})));  // it has one
  CHECK(device.arbiter->renew(99, 1, kTtl).take() == RenewAnswer::kOver);
}

TEST(finished_revocations_are_forgotten_in_the_end) {
  Device device;
  device.grant(1);
  device.alloc(1);
  const RevocationId pending = device.revoke(1);
  const RevocationId first = device.revoke(1);
  for (std::size_t i = 0; i < Arbiter::kRevocationsKept; ++i) device.revoke(1);
  CHECK(!device.arbiter->poll(first).ok());
  CHECK_EQ(device.poll(pending).pending, 1);
}
