// The bitmaps: fullest slab first, no id twice, all or nothing.
#include "memory/block_map.h"

#include <algorithm>
#include <random>
#include <set>
#include <span>
#include <vector>

#include "check.h"

using rose::Code;
using rose::Status;
using rose::memory::BlockGrid;
using rose::memory::BlockId;
using rose::memory::BlockMap;
using rose::memory::BlockPosition;
using rose::memory::kNoSlab;
using rose::memory::PoolShape;
using rose::memory::SlabId;
using rose::memory::SlabUse;

namespace {

// Four slabs of `count` blocks each; slab s has the ids from s * count on.
BlockMap map_of(std::int32_t count) {
  const PoolShape shape{static_cast<std::size_t>(count), 4, 0};
  return BlockMap{BlockGrid::create(shape, {1, 0, 0}).take()};
}

// n ids, from the fullest slab first.
std::vector<BlockId> take(BlockMap& map, std::int64_t n) {
  CHECK(n <= map.free_blocks());
  std::vector<BlockId> ids(static_cast<std::size_t>(n));
  for (std::int64_t done = 0; done < n;) {
    done += map.take_from(map.fullest(), n - done, ids.data() + done);
  }
  return ids;
}

// Drops a reference of each id; ids without references become free.
Status give(BlockMap& map, std::span<const BlockId> ids) {
  ROSE_TRY(map.drop(ids));
  for (const BlockId& id : ids) {
    map.release(map.grid().slab_at(id), {&id, 1}, [](BlockPosition) { return false; });
  }
  return {};
}

}  // namespace

TEST(every_block_is_given_once_at_the_edges_of_words) {
  for (const std::int32_t count : {1, 2, 31, 63, 64, 65, 127, 128, 129}) {
    BlockMap map = map_of(count);
    map.add(1, 0);
    map.add(3, 0);
    const std::vector<BlockId> ids = take(map, 2 * count);
    CHECK_EQ(std::set<BlockId>(ids.begin(), ids.end()).size(), 2 * count);
    CHECK(std::ranges::all_of(ids, [&](BlockId id) { return id / count == 1 || id / count == 3; }));
    CHECK_EQ(map.fullest(), kNoSlab);
    CHECK(map.audit().ok());
    CHECK(give(map, ids).ok());
    CHECK_EQ(map.free_blocks(), 2 * count);
    CHECK(map.audit().ok());
  }
}

TEST(fullest_slab_is_used_first) {
  BlockMap map = map_of(10);
  for (SlabId slab = 0; slab < 4; ++slab) map.add(slab, 0);
  const std::vector<BlockId> ids = take(map, 25);  // two slabs full, one half
  CHECK(give(map, std::vector<BlockId>(ids.begin(), ids.begin() + 3)).ok());
  const SlabId first = map.grid().slab_at(ids.front());
  CHECK_EQ(map.used(first), 7);
  take(map, 3);
  CHECK_EQ(map.used(first), 10);  // neither the half slab nor the empty one
  std::int32_t empty = 0;
  for (SlabId slab = 0; slab < 4; ++slab) empty += map.is_idle(slab) ? 1 : 0;
  CHECK_EQ(empty, 1);
}

TEST(failed_give_changes_nothing) {
  BlockMap map = map_of(8);
  map.add(0, 0);
  const std::vector<BlockId> ids = take(map, 4);
  const auto fails = [&](std::vector<BlockId> blocks) {
    CHECK(give(map, blocks).code() == Code::kInvalidArgument);
    CHECK_EQ(map.used(0), 4);
    CHECK(map.audit().ok());
  };
  fails({ids[0], ids[1], ids[0]});  // twice
  fails({ids[0], 7});               // free already
  fails({ids[0], 8});               // not ours
  fails({ids[0], -1});
  fails({ids[0], 32});
  CHECK(give(map, ids).ok());
}

TEST(closed_slab_gives_no_block_and_takes_them_back) {
  BlockMap map = map_of(8);
  map.add(0, 0);
  const std::vector<BlockId> ids = take(map, 3);
  map.close(0);
  CHECK_EQ(map.fullest(), kNoSlab);
  CHECK_EQ(map.free_blocks(), 0);
  CHECK_EQ(map.used_blocks(), 3);
  CHECK_EQ(map.capacity_blocks(), 8);
  CHECK(give(map, ids).ok());
  CHECK_EQ(map.fullest(), kNoSlab);
  CHECK(map.is_idle(0));
  CHECK(map.audit().ok());
}

TEST(quarantined_slab_counts_nowhere) {
  BlockMap map = map_of(8);
  map.add(0, 0);
  const std::vector<BlockId> ids = take(map, 3);
  map.quarantine(0);
  CHECK_EQ(map.used_blocks(), 0);
  CHECK_EQ(map.capacity_blocks(), 0);
  CHECK(give(map, ids).ok());
  CHECK(map.is_idle(0));
  CHECK(map.audit().ok());
}

TEST(removed_slab_comes_back_empty) {
  BlockMap map = map_of(8);
  map.add(2, 4);
  const std::vector<BlockId> ids = take(map, 5);
  map.pin(2);
  map.remove(2);
  CHECK(map.use(2) == SlabUse::kAbsent);
  CHECK(give(map, ids).code() == Code::kInvalidArgument);
  map.add(2, 5);
  CHECK_EQ(map.free_blocks(), 8);
  CHECK(!map.unpin(2, 4));  // of the earlier generation
  CHECK_EQ(map.pins(2), 0);
  CHECK(map.audit().ok());
}

TEST(random_takes_and_gives_keep_the_counts) {
  std::mt19937 random{7};
  BlockMap map = map_of(100);
  for (SlabId slab = 0; slab < 4; ++slab) map.add(slab, 0);
  std::vector<BlockId> held;
  for (int round = 0; round < 2000; ++round) {
    const auto n = static_cast<std::int64_t>(random() % 40);
    if (random() % 2 == 0 && n <= map.free_blocks()) {
      const std::vector<BlockId> ids = take(map, n);
      held.insert(held.end(), ids.begin(), ids.end());
    } else {
      std::ranges::shuffle(held, random);
      const auto count = std::min(held.size(), static_cast<std::size_t>(n));
      CHECK(give(map, std::span{held.data(), count}).ok());
      held.erase(held.begin(), held.begin() + static_cast<std::ptrdiff_t>(count));
    }
    CHECK_EQ(map.used_blocks(), held.size());
    if (round % 100 == 0) CHECK(map.audit().ok());
  }
}
