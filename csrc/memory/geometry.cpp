#include "memory/geometry.h"

#include <limits>

namespace rose::memory {

Result<BlockGrid> BlockGrid::create(PoolShape shape, BlockGeometry geometry) noexcept {
  if (geometry.block_bytes == 0) return Status::invalid_argument("block_bytes must be > 0, got 0");
  if (geometry.blocks_per_slab_max < 0) {
    return Status::invalid_argument("blocks_per_slab_max must be at least 0, got " +
                                    std::to_string(geometry.blocks_per_slab_max));
  }
  if (geometry.origin_bytes > shape.header_bytes()) {
    return Status::invalid_argument("origin_bytes must be at most the header's " +
                                    std::to_string(shape.header_bytes()) + " bytes, got " +
                                    std::to_string(geometry.origin_bytes));
  }
  const std::size_t id_end =
      (shape.total_bytes() - geometry.origin_bytes) / geometry.block_bytes + 1;
  if (id_end > static_cast<std::size_t>(std::numeric_limits<BlockId>::max())) {
    return Status::invalid_argument("blocks of " + std::to_string(geometry.block_bytes) +
                                    " bytes need ids of more than 32 bits: raise block_bytes");
  }
  if (geometry.block_bytes > shape.slab_bytes) {
    return Status::invalid_argument("a block of " + std::to_string(geometry.block_bytes) +
                                    " bytes does not fit into a slab of " +
                                    std::to_string(shape.slab_bytes) + " bytes: raise slab_bytes");
  }
  const BlockGrid grid{shape, geometry};
  for (SlabId slab = 0; slab < shape.slab_count; ++slab) {
    if (grid.blocks_of(slab).count > 0) continue;
    return Status::invalid_argument("no whole block of " + std::to_string(geometry.block_bytes) +
                                    " bytes fits into slab " + std::to_string(slab) +
                                    ": raise slab_bytes");
  }
  return grid;
}

}  // namespace rose::memory
