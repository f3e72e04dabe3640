// The shape of a pool: [ header slabs, never lent | slab 0 | slab 1 | ... ], all of one size.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace rose::memory {

// Numbers the lendable slabs from 0; header slabs have no id.
using SlabId = std::int32_t;
inline constexpr SlabId kNoSlab = -1;

struct PoolShape {
  std::size_t slab_bytes{0};
  std::int32_t slab_count{0};
  // One per tenant, with that tenant's own null (trash) blocks.
  std::int32_t header_slabs{0};

  std::size_t header_bytes() const noexcept {
    return static_cast<std::size_t>(header_slabs) * slab_bytes;
  }
  // Start of a lendable slab, counted from the first byte of the pool.
  std::size_t slab_base(SlabId slab) const noexcept {
    return header_bytes() + static_cast<std::size_t>(slab) * slab_bytes;
  }
  std::size_t total_bytes() const noexcept { return slab_base(slab_count); }

  bool operator==(const PoolShape&) const = default;
};

// InvalidArgument if slabs are not whole pages, there is no lendable slab, the number of header
// slabs is negative, or the pool exceeds the address space.
Status check_shape(const PoolShape& shape) noexcept;

}  // namespace rose::memory
