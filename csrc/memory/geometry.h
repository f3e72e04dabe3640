// Computes the block ids in each slab from one tenant's block size and origin.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "memory/shape.h"

namespace rose::memory {

// Names one block: the `block_bytes` bytes that start at `origin_bytes + id * block_bytes`.
using BlockId = std::int32_t;

struct BlockGeometry {
  std::size_t block_bytes{0};
  // Start of the block with id 0, counted from the first byte of the pool; at most the header's
  // size.
  std::size_t origin_bytes{0};
  // Most ids in a slab; 0 means as many as fit. A tenant's layout may need the rest of the slab: in
  // the slab-layer-major layout, one id names a block in every layer.
  std::int32_t blocks_per_slab_max{0};
};

struct BlockRun {
  BlockId first{0};
  std::int32_t count{0};
};

// The ids in each slab: a pure function of shape and geometry.
//
// Invariants:
//   1. Every block of blocks_of(slab) lies wholly inside that slab.
//   2. Runs of different slabs do not overlap; ids between runs belong to no slab.
//   3. Every id, including those of the last slab, fits BlockId.
class BlockGrid {
 public:
  // InvalidArgument for a geometry that leaves a slab without a whole block, or whose ids do not
  // fit 32 bits.
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
  // Returns the slab that contains the first byte of `block`; kNoSlab if no lendable slab does. The
  // block need not be in the run of that slab.
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
