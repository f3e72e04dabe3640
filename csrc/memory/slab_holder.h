// What an arbiter asks of whoever uses the slabs of a partition.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "memory/shape.h"

namespace rose::memory {

// What a slab is to its holder.
enum class SlabUse : std::uint8_t {
  kAbsent,       // not ours: its ids are stale
  kOpen,         // gives and takes back blocks
  kClosed,       // being revoked: takes back, gives none
  kQuarantined,  // lost: takes back, as evidence of completion, and counts nowhere
};

// A slab is idle when it has neither a block in use nor a pin.
struct SlabLoad {
  std::int32_t used{0};
  std::int32_t pins{0};

  bool is_idle() const noexcept { return used == 0 && pins == 0; }
};

struct BlockTotals {
  std::int64_t free{0};
  std::int64_t used{0};
};

// An allocator of this process, or the mailbox of a tenant in another one.
//
// Thread rule: the arbiter calls all of it, under its mutex. Nothing here waits for the tenant.
class SlabHolder {
 public:
  virtual ~SlabHolder() = default;

  // kAbsent -> kOpen, with every block free.
  virtual void add_slab(SlabId slab, std::uint32_t generation) noexcept = 0;
  // kOpen -> kClosed. Blocks that were set aside and hold no data are given back.
  virtual Status close_slab(SlabId slab) noexcept = 0;
  // kOpen or kClosed -> kQuarantined.
  virtual void quarantine_slab(SlabId slab) noexcept = 0;
  // Any -> kAbsent. Forgets blocks and pins that are still there.
  virtual void remove_slab(SlabId slab) noexcept = 0;

  virtual SlabLoad load(SlabId slab) const noexcept = 0;
  virtual BlockTotals totals() const noexcept = 0;

  // Internal unless the slab is `use` to the holder, at `generation` when it is not absent.
  virtual Status audit_slab(SlabId slab, SlabUse use, std::uint32_t generation) const noexcept = 0;
  // Recounts everything.
  virtual Status audit() const noexcept = 0;
};

}  // namespace rose::memory
