// Two attention groups of one tenant, through the door of its mailbox and beside an arbiter.
#include "memory/slab_groups.h"

#include <atomic>
#include <thread>
#include <vector>

#include "check.h"
#include "two_parties.h"

using namespace rose;
using namespace rose::memory;
using namespace rose::test;

namespace {

// The tenant's model has a second group, with blocks of half the size: eight in a slab.
struct TwoGroups : TwoParties {
  BlockAllocator* windows = tenant->add_group({kBlock / 2, kShape.slab_bytes, 0}).take();

  bool take(BlockAllocator& group, std::size_t n, std::vector<BlockId>& ids) {
    ids.resize(n);
    return group.alloc(ids);
  }
  std::int64_t missing(std::vector<std::int64_t> wanted) {
    return tenant->missing_slabs(wanted).take();
  }
};

}  // namespace

TEST(slabs_serve_whichever_group_needs_them) {
  TwoGroups all;
  CHECK(all.grant(2));
  CHECK_EQ(all.tenant->look().take().admitted, 2);
  CHECK_EQ(all.blocks->free_blocks(), 8);
  CHECK_EQ(all.windows->free_blocks(), 16);
  std::vector<BlockId> small;
  CHECK(all.take(*all.windows, 9, small));
  CHECK_EQ(all.blocks->free_blocks(), 0);
  CHECK_EQ(all.windows->free_blocks(), 7);
  CHECK(all.windows->free(small).ok());
  CHECK(all.alloc(8));
  CHECK_EQ(all.windows->free_blocks(), 0);
  all.free_all();
}

TEST(missing_slabs_count_all_groups_at_once) {
  TwoGroups all;
  CHECK(all.grant(1));
  CHECK(all.tenant->look().ok());
  CHECK_EQ(all.missing({4, 0}), 0);
  CHECK_EQ(all.missing({0, 8}), 0);
  CHECK_EQ(all.missing({1, 1}), 1);  // each alone would fit
  CHECK_EQ(all.missing({5, 9}), 3);
  std::vector<BlockId> small;
  CHECK(all.take(*all.windows, 1, small));
  CHECK_EQ(all.missing({0, 7}), 0);
  CHECK_EQ(all.missing({1, 7}), 1);
  CHECK(!all.tenant->missing_slabs(std::vector<std::int64_t>{1}).ok());
}

TEST(idle_slabs_of_every_group_leave_without_a_word) {
  TwoGroups all;
  CHECK(all.grant(3));
  CHECK(all.tenant->look().ok());
  std::vector<BlockId> small;
  CHECK(all.take(*all.windows, 20, small));
  CHECK(all.windows->free(small).ok());
  all.revoke(3, all.serving);
  CHECK_EQ(all.arbiter->poll(all.revocation).take().returned, 3);
  CHECK(!all.take(*all.windows, 1, small));
  CHECK(!all.alloc(1));
  CHECK_EQ(all.blocks->free_blocks(), 0);
  CHECK(all.arbiter->check_invariants().ok());
}

TEST(what_one_group_hears_of_closed_slabs_all_groups_obey) {
  TwoGroups all;
  CHECK(all.grant(2));
  CHECK(all.tenant->look().ok());
  std::vector<BlockId> small;
  CHECK(all.alloc(1));
  CHECK(all.take(*all.windows, 1, small));
  all.revoke(2, all.serving);
  // The first group that is used takes in the news.
  std::vector<BlockId> more;
  CHECK(!all.alloc(1));
  CHECK(!all.take(*all.windows, 1, more));
  CHECK_EQ(all.windows->free_blocks(), 0);
  all.free_all();
  CHECK(all.windows->free(small).ok());
  CHECK_EQ(all.arbiter->poll(all.revocation).take().returned, 2);
}

TEST(reports_are_of_all_groups) {
  TwoGroups all;
  CHECK(all.grant(2));
  CHECK(all.tenant->look().ok());
  std::vector<BlockId> small;
  CHECK(all.alloc(3));
  CHECK(all.take(*all.windows, 5, small));
  all.tenant->beat(1);
  const std::vector<Candidate> lent = all.arbiter->candidates(all.rollout).take();
  CHECK_EQ(lent.size(), 2);
  std::int32_t used = 0;
  for (const Candidate& one : lent) used += one.used;
  CHECK_EQ(used, 8);
}

TEST(an_attachment_takes_a_group_only_behind_an_allocator) {
  TwoParties all;
  auto other = Attachment::create(all.pool_again(), all.parts()).take();
  CHECK(!other->add_group({512, 0, 0}).ok());
  CHECK(other->add_allocator({512, 0, 0}).ok());
  CHECK(!other->add_allocator({512, 0, 0}).ok());
}

TEST(watched_supply_counts_what_any_group_takes) {
  TwoParties all;
  const BlockGeometry whole{TwoParties::kBlock, 0, 0};
  BlockAllocator* first = all.arbiter->add_allocator(all.serving, whole).take();
  BlockAllocator* second = all.arbiter->add_group(all.serving, {512, 0, 0}).take();
  CHECK_EQ(all.arbiter->take(all.serving, 2).take().size(), 2);
  CHECK(all.grant(1));
  CHECK_EQ(first->free_blocks(), 8);
  // One of four slabs is unowned: with its blocks there are twelve, and eleven are needed.
  CHECK(!all.arbiter->watch(all.serving, 11, 4, 0).take());
  std::vector<BlockId> ids(1);
  CHECK(second->alloc(ids));
  CHECK(all.arbiter->is_short(all.serving, 0).take());
  CHECK_EQ(all.arbiter->listen(0, 0), 1U);  // and the bell rings
  CHECK(second->free(ids).ok());
}

TEST(groups_balance_while_both_sides_are_at_work) {
  TwoGroups all;
  std::atomic<bool> is_done{false};
  const auto work = [&](BlockAllocator& group, std::size_t n) {
    while (!is_done.load()) {
      CHECK(all.tenant->look().ok());
      std::vector<BlockId> ids(n);
      if (!group.alloc(ids)) {
        std::this_thread::yield();
        continue;
      }
      const Result<PinId> pin = group.pin_blocks(ids);
      CHECK(pin.ok());
      all.tenant->beat(1);
      CHECK(group.free(ids).ok());
      CHECK(group.unpin(pin.value()).ok());
    }
  };
  std::thread one{[&] { work(*all.blocks, 3); }};
  std::thread other{[&] { work(*all.windows, 5); }};
  for (int round = 0; round < 200; ++round) {
    CHECK(all.grant(2));
    std::this_thread::yield();
    all.revoke(2, all.serving);
    while (all.arbiter->poll(all.revocation).take().pending > 0) std::this_thread::yield();
    CHECK(all.arbiter->check_invariants().ok());
    CHECK(all.arbiter->give_back(all.serving, 4).ok());
  }
  is_done.store(true);
  one.join();
  other.join();
}
