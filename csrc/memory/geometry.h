// The block ids in each slab, for one tenant's block size and origin.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "memory/shape.h"

namespace rose::memory {

// Names `block_bytes` bytes from `origin + id * block_bytes` on.
using BlockId = std::int32_t;

struct BlockGeometry {
  std::size_t block_bytes{0};
  // Start of id 0, counted from the first byte of the pool; not behind the header.
  std::size_t origin_bytes{0};
  // 0: as many as fit. Otherwise the tenant's layout uses the rest of the slab (in the
  // slab-layer-major layout an id names one block of every layer).
  std::int32_t blocks_per_slab_max{0};
};

struct BlockRun {
  BlockId first{0};
  std::int32_t count{0};
};

// A pure function of shape and geometry.
//
// Invariants:
//   1. Every block of blocks_of(slab) lies wholly inside that slab.
//   2. Runs of different slabs do not overlap; ids between runs belong to no slab.
//   3. Every id, including those of the last slab, fits BlockId.
class BlockGrid {
 public:
  // Refuses a geometry with a slab without blocks, or with ids that do not fit 32 bits.
  static Result<BlockGrid> create(PoolShape shape, BlockGeometry geometry) noexcept;

  const PoolShape& shape() const noexcept { return shape_; }
  const BlockGeometry& geometry() const noexcept { return geometry_; }

  BlockRun blocks_of(SlabId slab) const noexcept {
    const std::size_t base = shape_.slab_base(slab) - geometry_.origin_bytes;
    const std::size_t first = (base + geometry_.block_bytes - 1) / geometry_.block_bytes;
    std::size_t count = (base + shape_.slab_bytes) / geometry_.block_bytes - first;
    const auto most = static_cast<std::size_t>(geometry_.blocks_per_slab_max);
    if (most != 0 && count > most) count = most;
    return {static_cast<BlockId>(first), static_cast<std::int32_t>(count)};
  }
  // The slab with the first byte of `block`, or kNoSlab outside the lendable slabs. The block need
  // not be in the run of that slab.
  SlabId slab_at(BlockId block) const noexcept {
    if (block < 0) return kNoSlab;
    const std::size_t at = offset_of(block);
    if (at < shape_.header_bytes() || at >= shape_.total_bytes()) return kNoSlab;
    return static_cast<SlabId>((at - shape_.header_bytes()) / shape_.slab_bytes);
  }
  // Offset of the first byte of `block` (>= 0), counted from the first byte of the pool.
  std::size_t offset_of(BlockId block) const noexcept {
    return geometry_.origin_bytes + static_cast<std::size_t>(block) * geometry_.block_bytes;
  }

 private:
  BlockGrid(PoolShape shape, BlockGeometry geometry) noexcept
      : shape_{shape}, geometry_{geometry} {}

  PoolShape shape_;
  BlockGeometry geometry_;
};

}  // namespace rose::memory
