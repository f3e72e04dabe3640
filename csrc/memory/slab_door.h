// An allocator's use of slabs whose arbiter is in another process.
#pragma once

#include <cstdint>

#include "memory/shape.h"

namespace rose::memory {

// The door between an allocator and the shared words of its mailbox. The allocator enters a slab
// before it takes the slab's first block or pin, and leaves the slab after the last one. While the
// tenant is inside, the arbiter waits for the slab; otherwise the arbiter takes the slab back
// without asking.
//
// Thread rule: the allocator calls it under its own lock. Nothing here waits.
class SlabDoor {
 public:
  virtual ~SlabDoor() = default;

  // True if the arbiter has closed, taken or added slabs since the last call.
  virtual bool has_news() noexcept = 0;
  // True if the tenant has the slab, at this generation, and need not leave it.
  virtual bool is_open(SlabId slab, std::uint32_t generation) const noexcept = 0;
  // True if the tenant may use the slab until leave(); false if the tenant has lost the slab.
  virtual bool enter(SlabId slab, std::uint32_t generation) noexcept = 0;
  // True if the slab is still the tenant's. False if the slab was closed and this call returned it,
  // or if the arbiter had taken the slab before.
  virtual bool leave(SlabId slab, std::uint32_t generation) noexcept = 0;
  // Blocks of the slab are in use, but no pin holds the slab.
  virtual void on_unpinned(SlabId slab) noexcept = 0;
};

}  // namespace rose::memory
