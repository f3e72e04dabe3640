// References and cached prefixes, recounted after every call.
#include <algorithm>
#include <vector>

#include "check.h"
#include "memory/shared_blocks.h"

using rose::Code;
using rose::memory::BlockId;
using rose::memory::SlabId;
using rose::test::SharedBlocks;
using Ids = std::vector<BlockId>;

namespace {

// The ids of slab `slab`.
Ids slab_ids(SlabId slab) {
  Ids ids;
  for (BlockId i = 0; i < SharedBlocks::kBlocks; ++i) {
    ids.push_back(slab * SharedBlocks::kBlocks + i);
  }
  return ids;
}

SlabId slab_of(BlockId block) { return block / SharedBlocks::kBlocks; }

// Fills two slabs and caches both; the first was used less recently.
struct Cached : SharedBlocks {
  Ids first;
  Ids second;

  Cached() : SharedBlocks{2} {
    first = alloc(4);
    second = alloc(4);
    publish(first, {1, 2, 3, 4});
    publish(second, {5, 6, 7, 8});
    free(first);
    free(second);
  }
};

}  // namespace

TEST(block_is_free_with_its_last_reference) {
  SharedBlocks tenant{1};
  const Ids ids = tenant.alloc(2);
  tenant.share({ids[0], ids[0]});
  CHECK_EQ(tenant.references(ids[0]), 3);
  CHECK_EQ(tenant.blocks.used_blocks(), 2);
  tenant.free({ids[0], ids[1], ids[0]});
  CHECK_EQ(tenant.references(ids[0]), 1);
  CHECK_EQ(tenant.blocks.used_blocks(), 1);
  tenant.free({ids[0]});
  CHECK_EQ(tenant.references(ids[0]), 0);
  CHECK_EQ(tenant.blocks.free_blocks(), 4);
}

TEST(more_drops_than_references_in_one_call_change_nothing) {
  SharedBlocks tenant{1};
  const Ids ids = tenant.alloc(2);
  tenant.share({ids[0]});
  CHECK(tenant.blocks.free(Ids{ids[0], ids[1], ids[0], ids[0]}).code() == Code::kInvalidArgument);
  tenant.audit();
  CHECK_EQ(tenant.references(ids[0]), 2);
  CHECK_EQ(tenant.references(ids[1]), 1);
}

TEST(share_is_all_or_none) {
  SharedBlocks tenant{1};
  const Ids ids = tenant.alloc(1);
  for (const BlockId wrong : {ids[0] + 1, -1, 400}) {
    CHECK(tenant.blocks.share(Ids{ids[0], wrong}).code() == Code::kInvalidArgument);
    tenant.audit();
    CHECK_EQ(tenant.references(ids[0]), 1);
  }
}

TEST(set_aside_block_can_be_neither_freed_nor_shared) {
  SharedBlocks tenant{1};
  const auto ticket = tenant.blocks.reserve(4);
  for (const BlockId block : slab_ids(0)) {
    CHECK(tenant.blocks.free(Ids{block}).code() == Code::kInvalidArgument);
    CHECK(tenant.blocks.share(Ids{block}).code() == Code::kInvalidArgument);
    CHECK_EQ(tenant.references(block), 0);
  }
  Ids out(2);
  CHECK(tenant.blocks.commit(*ticket, out).take());
  tenant.audit();
  CHECK_EQ(tenant.references(out[0]), 1);
  CHECK(tenant.blocks.cancel(*ticket).ok());
  tenant.audit();
  CHECK_EQ(tenant.blocks.used_blocks(), 2);
}

TEST(published_block_is_found_in_use_and_after) {
  SharedBlocks tenant{1};
  const Ids ids = tenant.alloc(3);
  tenant.publish(ids, {1, 2, 3});
  CHECK(tenant.lookup({1, 2, 9, 3}) == Ids({ids[0], ids[1]}));
  CHECK(tenant.lookup({9, 1}).empty());
  tenant.free(ids);
  CHECK_EQ(tenant.blocks.cached_blocks(), 3);
  CHECK_EQ(tenant.blocks.free_blocks(), 4);
  CHECK_EQ(tenant.blocks.used_blocks(), 0);
  CHECK(tenant.holder().load(0).is_idle());
  CHECK(tenant.acquire({1, 2}) == Ids({ids[0], ids[1]}));
  CHECK_EQ(tenant.references(ids[0]), 1);
  CHECK_EQ(tenant.blocks.cached_blocks(), 1);
  CHECK(tenant.acquire({1}) == Ids({ids[0]}));
  CHECK_EQ(tenant.references(ids[0]), 2);
}

TEST(share_revives_a_cached_block) {
  SharedBlocks tenant{1};
  const Ids ids = tenant.alloc(1);
  tenant.publish(ids, {1});
  tenant.free(ids);
  tenant.share(ids);
  CHECK_EQ(tenant.references(ids[0]), 1);
  CHECK_EQ(tenant.blocks.cached_blocks(), 0);
  tenant.free(ids);
  CHECK(tenant.blocks.free(ids).code() == Code::kInvalidArgument);  // cached is not in use
}

TEST(second_block_of_a_key_has_none) {
  SharedBlocks tenant{1};
  const Ids ids = tenant.alloc(2);
  tenant.publish(ids, {1, 1});
  CHECK(tenant.lookup({1}) == Ids{ids[0]});
  tenant.free(ids);
  CHECK_EQ(tenant.blocks.cached_blocks(), 1);
}

TEST(publish_is_all_or_none) {
  SharedBlocks tenant{1};
  const Ids ids = tenant.alloc(1);
  CHECK(tenant.blocks.publish(Ids{ids[0], ids[0] + 1}, SharedBlocks::keys({1, 2})).code() ==
        Code::kInvalidArgument);
  CHECK(tenant.blocks.publish(ids, SharedBlocks::keys({1, 2})).code() == Code::kInvalidArgument);
  CHECK(tenant.lookup({1}).empty());
}

TEST(free_blocks_are_taken_before_cached_ones) {
  SharedBlocks tenant{2};
  const Ids ids = tenant.alloc(2);
  tenant.publish(ids, {1, 2});
  tenant.free(ids);
  const Ids others = tenant.alloc(6);
  CHECK(tenant.lookup({1, 2}) == ids);
  tenant.free(others);
  tenant.alloc(7);
  CHECK(tenant.lookup({1}).empty());  // the slab gave both
  CHECK(tenant.lookup({2}).empty());
}

TEST(slab_that_was_used_longest_ago_gives_all_its_cached_blocks) {
  Cached tenant;
  tenant.alloc(1);
  CHECK(tenant.lookup({1}).empty());
  CHECK(tenant.lookup({4}).empty());
  CHECK(tenant.lookup({5, 6, 7, 8}) == tenant.second);
}

TEST(hit_makes_a_slab_young_again) {
  Cached tenant;
  tenant.acquire({1});
  tenant.alloc(1);
  CHECK(tenant.lookup({1, 2, 3, 4}) == tenant.first);
  CHECK(tenant.lookup({5}).empty());
}

TEST(other_namespaces_never_hit_and_go_first) {
  Cached tenant;
  tenant.free(tenant.acquire({5}));  // the younger one
  tenant.blocks.set_cache_namespace("next");
  tenant.audit();
  CHECK(tenant.lookup({1}).empty());
  CHECK(tenant.acquire({5}).empty());
  const Ids ids = tenant.alloc(1);  // the slab of 1 to 4 is empty now
  tenant.publish(ids, {1});
  tenant.free(ids);
  tenant.blocks.set_cache_namespace("");
  tenant.audit();
  CHECK(tenant.lookup({5, 6, 7, 8}) == tenant.second);  // it comes back with its namespace
  tenant.alloc(4);                                      // the younger, but of another namespace
  CHECK(tenant.lookup({5, 6, 7, 8}) == tenant.second);
  tenant.blocks.set_cache_namespace("next");
  CHECK(tenant.lookup({1}).empty());
}

TEST(block_of_another_namespace_is_not_cached_when_it_is_freed) {
  SharedBlocks tenant{1};
  const Ids ids = tenant.alloc(1);
  tenant.publish(ids, {1});
  tenant.blocks.set_cache_namespace("next");
  tenant.free(ids);
  CHECK_EQ(tenant.blocks.cached_blocks(), 0);
  tenant.blocks.set_cache_namespace("");
  CHECK(tenant.lookup({1}).empty());
}

TEST(cached_blocks_of_an_old_namespace_leave_a_slab_that_caches_for_a_new_one) {
  SharedBlocks tenant{1};
  const Ids ids = tenant.alloc(3);
  tenant.publish({ids[0], ids[1]}, {1, 2});
  tenant.free({ids[0], ids[1]});
  tenant.blocks.set_cache_namespace("next");
  tenant.publish({ids[2]}, {1});
  tenant.free({ids[2]});
  CHECK_EQ(tenant.blocks.cached_blocks(), 1);
}

TEST(forgotten_blocks_are_free) {
  Cached tenant;
  tenant.share({tenant.first[0]});
  CHECK(tenant.blocks.forget(Ids{tenant.first[0], tenant.first[1]}).ok());
  tenant.audit();
  CHECK(tenant.lookup({1}).empty());
  CHECK_EQ(tenant.blocks.cached_blocks(), 6);
  CHECK(tenant.blocks.forget(Ids{tenant.first[2], 400}).code() == Code::kInvalidArgument);
  CHECK_EQ(tenant.lookup({3}).size(), 1);
  tenant.blocks.forget_all();
  tenant.audit();
  CHECK_EQ(tenant.blocks.cached_blocks(), 0);
  CHECK(tenant.lookup({5}).empty());
  tenant.free({tenant.first[0]});
  CHECK_EQ(tenant.blocks.free_blocks(), 8);
}

TEST(cached_blocks_do_not_hold_up_a_revocation) {
  Cached tenant;
  const SlabId slab = slab_of(tenant.first[0]);
  tenant.revoke(slab);
  CHECK(tenant.gone == std::vector<SlabId>{slab});
  CHECK(tenant.lookup({1}).empty());
  CHECK_EQ(tenant.blocks.cached_blocks(), 4);
}

TEST(leaving_slab_is_not_found_any_more_and_caches_nothing) {
  SharedBlocks tenant{2};
  const Ids ids = tenant.alloc(2);
  tenant.publish({ids[0]}, {1});
  tenant.revoke(slab_of(ids[0]));
  CHECK(tenant.lookup({1}).empty());
  tenant.publish({ids[1]}, {2});  // allowed, but without effect
  CHECK(tenant.lookup({2}).empty());
  tenant.free(ids);
  CHECK_EQ(tenant.gone.size(), 1);
  CHECK_EQ(tenant.blocks.cached_blocks(), 0);
}
