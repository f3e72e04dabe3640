// What an arbiter asks of whoever uses the slabs of a partition.
#pragma once

#include <cstdint>

#include "base/clock.h"
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

// No hint of what a revocation of the slab would cost its tenant.
inline constexpr std::uint32_t kNoRank = 0xffffffff;

// A slab is idle when it has neither a block in use nor a pin.
struct SlabLoad {
  std::int32_t used{0};
  std::int32_t pins{0};
  // The tenant's own hint; of two busy slabs the one with the smaller rank is revoked first.
  std::uint32_t rank{kNoRank};

  bool is_idle() const noexcept { return used == 0 && pins == 0; }
};

struct BlockTotals {
  std::int64_t free{0};
  std::int64_t used{0};
};

// Holds on blocks that are not over, whatever they hold.
struct PinTotals {
  std::int64_t count{0};
  Nanoseconds oldest_ns{0};  // CLOCK_BOOTTIME of the first of them; 0 when there is none

  void add(const PinTotals& more) noexcept {
    const bool is_older = more.count > 0 && (count == 0 || more.oldest_ns < oldest_ns);
    if (is_older) oldest_ns = more.oldest_ns;
    count += more.count;
  }
  bool operator==(const PinTotals&) const = default;
};

// An allocator of this process, or the mailbox of a tenant in another one.
//
// Thread rule: the arbiter calls all of it, under its mutex. Nothing here waits for the tenant.
class SlabHolder {
 public:
  virtual ~SlabHolder() = default;

  // kAbsent -> kOpen, with every block free.
  virtual void add_slab(SlabId slab, std::uint32_t generation) noexcept = 0;
  // kOpen and idle -> kAbsent, in one step against whoever may begin to use it; false, and nothing
  // changed, when it is not idle.
  virtual bool take_idle(SlabId slab) noexcept {
    if (!load(slab).is_idle() || !close_slab(slab).ok()) return false;
    remove_slab(slab);
    return true;
  }
  // kOpen -> kClosed. Blocks that were set aside and hold no data are given back.
  virtual Status close_slab(SlabId slab) noexcept = 0;
  // kOpen or kClosed -> kQuarantined.
  virtual void quarantine_slab(SlabId slab) noexcept = 0;
  // Any -> kAbsent. Forgets blocks and pins that are still there.
  virtual void remove_slab(SlabId slab) noexcept = 0;

  // Says that a slab which was added without a word may be used from here on.
  virtual void tell(SlabId) noexcept {}
  virtual bool was_told(SlabId) const noexcept { return false; }

  virtual SlabLoad load(SlabId slab) const noexcept = 0;
  virtual BlockTotals totals() const noexcept = 0;
  virtual PinTotals pin_totals() const noexcept = 0;

  // Whether `other` is this holder, or a part of it.
  virtual bool includes(const SlabHolder& other) const noexcept { return this == &other; }

  // Whether a slab that becomes idle is reported inside the call that made it so. Otherwise the
  // arbiter has to look.
  virtual bool reports_idle() const noexcept { return true; }
  // Whether the holder gave an open slab back by its own will.
  virtual bool has_given(SlabId) const noexcept { return false; }
  // The holder is proven to be done with everything: from here on every slab is idle.
  virtual void lose() noexcept {}
  // Ends a change of the books: what the holder has to hear, it hears now.
  virtual void settle() noexcept {}

  // Internal unless the slab is `use` to the holder, at `generation` when it is not absent.
  virtual Status audit_slab(SlabId slab, SlabUse use, std::uint32_t generation) const noexcept = 0;
  // Recounts everything.
  virtual Status audit() const noexcept = 0;
};

}  // namespace rose::memory
