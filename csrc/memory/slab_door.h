// An allocator's use of slabs whose arbiter is in another process.
#pragma once

#include <cstdint>

#include "memory/shape.h"

namespace rose::memory {

// The door between an allocator and the shared words of its mailbox: the first block or pin of an
// empty slab enters, the last one leaves. While the tenant is inside, the arbiter waits for the
// slab; otherwise it takes the slab back without asking.
//
// Thread rule: the allocator calls it under its own lock. Nothing here waits.
class SlabDoor {
 public:
  virtual ~SlabDoor() = default;

  // Whether the arbiter has closed, taken or added slabs since the last call.
  virtual bool has_news() noexcept = 0;
  // The slab's current state; sets `generation` unless it is absent.
  virtual bool is_open(SlabId slab, std::uint32_t generation) const noexcept = 0;
  // True if the tenant may use the slab until leave(); false if the slab has left.
  virtual bool enter(SlabId slab, std::uint32_t generation) noexcept = 0;
  // True if the slab is still the tenant's; false if it was closed, and this call returned it.
  virtual bool leave(SlabId slab, std::uint32_t generation) noexcept = 0;
};

}  // namespace rose::memory
