// Sparse slabs become empty, moved data is found, and nothing is lost.
#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "check.h"
#include "memory/shared_blocks.h"

using rose::Code;
using rose::memory::BlockId;
using rose::memory::Evacuation;
using rose::memory::PinId;
using rose::memory::SlabId;
using rose::test::SharedBlocks;
using Ids = std::vector<BlockId>;

namespace {

SlabId slab_of(BlockId block) { return block / SharedBlocks::kBlocks; }

// Slabs with these numbers of blocks in use, and the used ids.
struct Sparse : SharedBlocks {
  std::vector<Ids> held;

  explicit Sparse(std::vector<std::size_t> used) : SharedBlocks{static_cast<SlabId>(used.size())} {
    const Ids all = alloc(used.size() * kBlocks);
    for (SlabId slab = 0; slab < slabs; ++slab) {
      Ids ids;
      std::ranges::copy_if(all, std::back_inserter(ids),
                           [&](BlockId block) { return slab_of(block) == slab; });
      const auto keep = static_cast<std::ptrdiff_t>(used[static_cast<std::size_t>(slab)]);
      free({ids.begin() + keep, ids.end()});
      ids.resize(static_cast<std::size_t>(keep));
      held.push_back(ids);
    }
  }

  Evacuation plan(std::int64_t limit = 1000) {
    Evacuation plan = blocks.plan_evacuation(limit);
    audit();
    return plan;
  }
  Evacuation plan_slabs(std::vector<SlabId> wanted, std::int64_t limit = 1000) {
    Evacuation plan = blocks.plan_evacuation(wanted, limit);
    audit();
    return plan;
  }
  Ids finish(const Evacuation& plan) {
    Ids now_at(plan.to.size());
    CHECK(blocks.finish_evacuation(plan.from, plan.to, now_at).ok());
    audit();
    return now_at;
  }
  void cancel(const Evacuation& plan) {
    CHECK(blocks.cancel_evacuation(plan.from, plan.to).ok());
    audit();
  }
  std::int32_t empty_slabs() {
    std::int32_t empty = 0;
    for (SlabId slab = 0; slab < slabs; ++slab) empty += blocks.used(slab) == 0 ? 1 : 0;
    return empty;
  }
};

}  // namespace

TEST(sparsest_slabs_move_into_the_fullest) {
  Sparse tenant{{1, 3, 1, 3}};
  const Evacuation plan = tenant.plan();
  CHECK_EQ(plan.from.size(), 2);
  CHECK(tenant.finish(plan) == plan.to);
  CHECK_EQ(tenant.blocks.used(0), 0);
  CHECK_EQ(tenant.blocks.used(2), 0);
  CHECK_EQ(tenant.blocks.used_blocks(), 8);
  CHECK(tenant.blocks.free(Ids{tenant.held[0][0]}).code() == Code::kInvalidArgument);
  tenant.free(plan.to);
}

TEST(only_whole_slabs_move_and_only_within_the_limit) {
  Sparse tenant{{2, 3, 3, 3}};
  CHECK(tenant.plan(1).from.empty());
  CHECK_EQ(tenant.plan(2).from.size(), 2);
  Sparse full{{2, 4, 3}};
  CHECK(full.plan().from.empty());  // there is room for one of two
  CHECK_EQ(full.blocks.free_blocks(), 3);
}

TEST(source_gives_no_block_until_the_move_is_over) {
  Sparse tenant{{1, 2, 0}};
  const Evacuation plan = tenant.plan();
  CHECK_EQ(plan.from.size(), 1);
  CHECK_EQ(tenant.blocks.free_blocks(), 1 + 4);
  CHECK(!tenant.can_alloc(6));
  tenant.finish(plan);
  CHECK(tenant.can_alloc(6 + 3));
}

TEST(cancelled_move_leaves_everything_where_it_was) {
  Sparse tenant{{1, 3}};
  const Evacuation plan = tenant.plan();
  CHECK_EQ(plan.from.size(), 1);
  CHECK_EQ(tenant.blocks.used_blocks(), 5);
  tenant.cancel(plan);
  CHECK_EQ(tenant.blocks.used_blocks(), 4);
  CHECK_EQ(tenant.blocks.free_blocks(), 4);
  CHECK_EQ(tenant.references(tenant.held[0][0]), 1);
  CHECK(tenant.blocks.cancel_evacuation(plan.from, plan.to).code() == Code::kInvalidArgument);
}

TEST(references_and_keys_move_with_the_data) {
  Sparse tenant{{1, 3}};
  const BlockId block = tenant.held[0][0];
  tenant.share({block, block});
  tenant.publish({block}, {7});
  const Evacuation plan = tenant.plan();
  tenant.finish(plan);
  CHECK_EQ(tenant.references(plan.to[0]), 3);
  CHECK_EQ(tenant.references(block), 0);
  CHECK(tenant.lookup({7}) == plan.to);
  tenant.free({plan.to[0], plan.to[0], plan.to[0]});
  CHECK_EQ(tenant.blocks.cached_blocks(), 1);
}

TEST(cached_blocks_of_a_source_are_dropped_and_not_moved) {
  Sparse tenant{{2, 3}};
  const Ids cached{tenant.held[0][1]};
  tenant.publish(cached, {7});
  tenant.free(cached);
  const Evacuation plan = tenant.plan();
  CHECK(plan.from == Ids{tenant.held[0][0]});
  CHECK_EQ(tenant.blocks.cached_blocks(), 0);
  CHECK(tenant.lookup({7}).empty());
}

TEST(pinned_slabs_and_those_with_set_aside_blocks_stay) {
  Sparse tenant{{1, 3}};
  const PinId pin = tenant.blocks.pin_blocks(tenant.held[0]).take();
  CHECK(tenant.plan_slabs({0}).from.empty());
  const Evacuation plan = tenant.plan();
  CHECK(plan.from == tenant.held[1]);  // into the pinned slab, which no block leaves
  tenant.cancel(plan);
  CHECK(tenant.blocks.unpin(pin).ok());
  Sparse ticketed{{1, 4}};
  CHECK(ticketed.blocks.reserve(1).has_value());
  ticketed.free({ticketed.held[1].begin(), ticketed.held[1].begin() + 3});
  CHECK(ticketed.plan_slabs({0}).from.empty());  // as far as the other slab has room
}

TEST(leaving_slab_goes_home_inside_the_finish) {
  Sparse tenant{{2, 3, 0}};
  tenant.revoke(0);
  CHECK(tenant.gone.empty());
  const Evacuation plan = tenant.plan_slabs({0});
  CHECK(plan.from == tenant.held[0]);
  tenant.finish(plan);
  CHECK(tenant.gone == std::vector<SlabId>{0});
}

TEST(named_slabs_take_what_others_cache) {
  Sparse tenant{{2, 4}};
  const Ids cached{tenant.held[1][0], tenant.held[1][1]};
  tenant.publish(cached, {1, 2});
  tenant.free(cached);
  const Evacuation plan = tenant.plan_slabs({0, 0, 9, -1});
  CHECK_EQ(plan.from.size(), 2);
  CHECK(tenant.finish(plan) == plan.to);
  CHECK_EQ(tenant.blocks.used(0), 0);
}

TEST(named_slab_that_fits_nowhere_stays_as_it_was) {
  Sparse tenant{{3, 2}};
  const std::int64_t free = tenant.blocks.free_blocks();
  CHECK(tenant.plan_slabs({0}).from.empty());
  CHECK_EQ(tenant.blocks.free_blocks(), free);
}

TEST(block_that_was_freed_meanwhile_does_not_come_back) {
  Sparse tenant{{1, 3}};
  const Evacuation plan = tenant.plan();
  tenant.free(tenant.held[0]);
  CHECK(tenant.finish(plan) == plan.from);
  CHECK_EQ(tenant.blocks.used_blocks(), 3);
  CHECK_EQ(tenant.blocks.free_blocks(), 5);
}

TEST(source_keeps_nothing_cached_for_later) {
  Sparse tenant{{1, 3}};
  tenant.publish(tenant.held[0], {7});
  const Evacuation plan = tenant.plan();
  tenant.free(tenant.held[0]);
  CHECK_EQ(tenant.blocks.cached_blocks(), 0);
  CHECK(tenant.lookup({7}).empty());
  tenant.cancel(plan);
}

TEST(target_slab_is_held_while_bytes_are_written_there) {
  Sparse tenant{{1, 2}};
  const Evacuation plan = tenant.plan();
  tenant.revoke(1);
  tenant.free(tenant.held[1]);
  CHECK(tenant.gone.empty());
  CHECK(tenant.finish(plan) == plan.from);  // no block moves into a slab in revocation
  CHECK(tenant.gone == std::vector<SlabId>{1});
  CHECK_EQ(tenant.references(tenant.held[0][0]), 1);
}

TEST(move_out_of_an_earlier_life_of_a_slab_changes_nothing) {
  Sparse tenant{{1, 3}};
  const Evacuation plan = tenant.plan();
  tenant.holder().remove_slab(0);  // lost to quarantine, and proven complete
  tenant.holder().add_slab(0, 2);
  tenant.audit();
  const Ids other = tenant.alloc(4);
  CHECK(std::ranges::find(other, plan.from[0]) != other.end());
  CHECK(tenant.finish(plan) == plan.from);
  CHECK_EQ(tenant.references(plan.from[0]), 1);
}

TEST(only_planned_pairs_can_be_ended) {
  Sparse tenant{{2, 2, 4}};
  const Evacuation plan = tenant.plan();
  CHECK_EQ(plan.from.size(), 2);
  Ids now_at(3);
  const auto fails = [&](const Ids& from, const Ids& to) {
    CHECK(tenant.blocks.finish_evacuation(from, to, now_at).code() == Code::kInvalidArgument);
    tenant.audit();
  };
  fails({plan.from[1]}, {plan.to[0]});
  fails({plan.from[0], plan.from[0]}, {plan.to[0], plan.to[0]});
  fails({plan.from[0]}, plan.to);
  fails({plan.from[0]}, {tenant.held[2][0]});
  tenant.finish({{plan.from[0]}, {plan.to[0]}});  // one now, the other later
  CHECK(!tenant.can_alloc(2));
  tenant.finish({{plan.from[1]}, {plan.to[1]}});
  CHECK(tenant.can_alloc(4));
}

TEST(random_evacuations_lose_no_reference) {
  std::mt19937 random{3};
  SharedBlocks tenant{6};
  std::map<BlockId, std::int32_t> held;
  for (int round = 0; round < 5000; ++round) {
    const auto n = random() % 8;
    Ids ids(n);
    switch (random() % 5) {
      case 0:
      case 1:
        if (tenant.blocks.alloc(ids)) {
          for (const BlockId block : ids) held[block] = 1;
        }
        break;
      case 2:
        for (std::size_t i = 0; i < n && !held.empty(); ++i) {
          const auto one =
              std::next(held.begin(), static_cast<std::ptrdiff_t>(random() % held.size()));
          CHECK(tenant.blocks.free(Ids{one->first}).ok());
          if (--one->second == 0) held.erase(one);
        }
        break;
      case 3:
        if (!held.empty()) {
          const auto one =
              std::next(held.begin(), static_cast<std::ptrdiff_t>(random() % held.size()));
          tenant.share({one->first});
          ++one->second;
        }
        break;
      default: {
        const auto slab = static_cast<SlabId>(random() % 6);
        const Evacuation plan = random() % 2 == 0
                                    ? tenant.blocks.plan_evacuation(12)
                                    : tenant.blocks.plan_evacuation(std::vector{slab}, 12);
        tenant.audit();
        Ids now_at(plan.to.size());
        CHECK(tenant.blocks.finish_evacuation(plan.from, plan.to, now_at).ok());
        CHECK(now_at == plan.to);
        for (std::size_t i = 0; i < plan.to.size(); ++i) {
          held[plan.to[i]] = held.at(plan.from[i]);
          held.erase(plan.from[i]);
        }
      }
    }
    tenant.audit();
    CHECK_EQ(tenant.blocks.used_blocks(), held.size());
    for (const auto& [block, references] : held) CHECK_EQ(tenant.references(block), references);
  }
}
