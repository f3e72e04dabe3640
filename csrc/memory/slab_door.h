// How an allocator uses slabs whose arbiter is in another process.
#pragma once

#include <cstdint>

#include "memory/shape.h"

namespace rose::memory {

// The door between an allocator and the shared words of its mailbox: the first block or pin of an
// empty slab enters, the last one leaves. Between the two the arbiter waits for the slab; outside
// it takes the slab back without asking.
//
// Thread rule: the allocator calls it under its own lock. Nothing here waits.
class SlabDoor {
 public:
  virtual ~SlabDoor() = default;

  // Whether the arbiter has closed, taken or added slabs since the last time it was asked.
  virtual bool has_news() noexcept = 0;
  // What a slab is now; `generation` is set unless it is absent.
  virtual bool is_open(SlabId slab, std::uint32_t generation) const noexcept = 0;
  // True when the slab is ours to use until leave(); false when it has left since.
  virtual bool enter(SlabId slab, std::uint32_t generation) noexcept = 0;
  // Whether the slab is still ours: false when it was closed, and has gone home with this call.
  virtual bool leave(SlabId slab, std::uint32_t generation) noexcept = 0;
};

}  // namespace rose::memory
