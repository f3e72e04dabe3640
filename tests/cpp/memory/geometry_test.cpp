// Block ids and slabs, compared with plain counting.
#include "memory/geometry.h"

#include <vector>

#include "check.h"

using rose::Code;
using rose::memory::BlockGeometry;
using rose::memory::BlockGrid;
using rose::memory::BlockId;
using rose::memory::BlockRun;
using rose::memory::kNoSlab;
using rose::memory::PoolShape;
using rose::memory::SlabId;

namespace {

// Every id whose bytes lie wholly inside the slab, found one by one.
std::vector<BlockId> ids_inside(PoolShape shape, BlockGeometry geometry, SlabId slab) {
  std::vector<BlockId> found;
  const std::size_t begin = shape.slab_base(slab);
  for (BlockId id = 0;; ++id) {
    const std::size_t at =
        geometry.origin_bytes + static_cast<std::size_t>(id) * geometry.block_bytes;
    if (at >= begin + shape.slab_bytes) break;
    if (at >= begin && at + geometry.block_bytes <= begin + shape.slab_bytes) found.push_back(id);
  }
  const auto most = static_cast<std::size_t>(geometry.blocks_per_slab_max);
  if (most != 0 && found.size() > most) found.resize(most);
  return found;
}

void compare(PoolShape shape, BlockGeometry geometry) {
  const BlockGrid grid = BlockGrid::create(shape, geometry).take();
  for (SlabId slab = 0; slab < shape.slab_count; ++slab) {
    const std::vector<BlockId> want = ids_inside(shape, geometry, slab);
    const BlockRun run = grid.blocks_of(slab);
    CHECK_EQ(run.count, want.size());
    CHECK_EQ(run.first, want.front());
    for (const BlockId id : want) {
      CHECK_EQ(grid.slab_at(id), slab);
      CHECK_EQ(grid.offset_of(id),
               geometry.origin_bytes + static_cast<std::size_t>(id) * geometry.block_bytes);
    }
  }
}

}  // namespace

TEST(ids_are_those_that_lie_inside) {
  for (const std::size_t block : {1, 31, 32, 33, 100, 127, 128, 129, 500, 511, 512}) {
    for (const std::int32_t header : {0, 1, 3}) {
      for (std::int32_t own = 0; own <= header; ++own) {
        const PoolShape shape{1024, 7, header};
        const std::size_t origin = static_cast<std::size_t>(own) * 1024;
        compare(shape, {block, origin, 0});
        compare(shape, {block, origin, 1});
        compare(shape, {block, origin, 5});
      }
    }
  }
}

TEST(origin_need_not_be_the_start_of_a_slab) {
  compare({1024, 5, 2}, {100, 1748, 0});
  compare({1024, 5, 2}, {128, 2048, 0});
}

TEST(ids_outside_the_lendable_slabs_have_no_slab) {
  const BlockGrid grid = BlockGrid::create({1024, 2, 1}, {256, 0, 0}).take();
  CHECK_EQ(grid.slab_at(3), kNoSlab);  // the header
  CHECK_EQ(grid.slab_at(4), 0);
  CHECK_EQ(grid.slab_at(11), 1);
  CHECK_EQ(grid.slab_at(12), kNoSlab);  // behind the pool
  CHECK_EQ(grid.slab_at(-1), kNoSlab);
}

TEST(impossible_geometries_are_refused) {
  const auto code_of = [](PoolShape shape, BlockGeometry geometry) {
    return BlockGrid::create(shape, geometry).status().code();
  };
  const PoolShape shape{1024, 4, 1};
  CHECK(code_of(shape, {0, 0, 0}) == Code::kInvalidArgument);
  CHECK(code_of(shape, {128, 0, -1}) == Code::kInvalidArgument);
  CHECK(code_of(shape, {128, 1025, 0}) == Code::kInvalidArgument);  // behind the header
  CHECK(code_of(shape, {1025, 0, 0}) == Code::kInvalidArgument);
  CHECK(code_of(shape, {1000, 0, 0}) == Code::kInvalidArgument);  // no whole one in slab 0
}

TEST(ids_of_more_than_32_bits_are_refused) {
  const std::size_t slab = std::size_t{1} << 30;
  CHECK(BlockGrid::create({slab, 2, 0}, {1, 0, 8}).status().code() == Code::kInvalidArgument);
  CHECK(BlockGrid::create({slab, 2, 0}, {2, 0, 8}).ok());
}
