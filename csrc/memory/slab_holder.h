// The interface between an arbiter and the user of a partition's slabs.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/status.h"
#include "memory/shape.h"

namespace rose::memory {

// The state of a slab for its holder.
enum class SlabUse : std::uint8_t {
  kAbsent,       // not the holder's: its ids are stale
  kOpen,         // gives and takes back blocks
  kClosed,       // being revoked: takes back blocks, gives none
  kQuarantined,  // lost: takes back blocks as evidence of completion, and is in no total
};

// The rank of a slab for which the tenant has given no hint.
inline constexpr std::uint32_t kNoRank = 0xffffffff;

// A slab is idle when it has neither a block in use nor a pin.
struct SlabLoad {
  std::int32_t used{0};
  std::int32_t pins{0};
  // The tenant's hint: the busy slab with the smallest rank is revoked first.
  std::uint32_t rank{kNoRank};

  bool is_idle() const noexcept { return used == 0 && pins == 0; }
};

struct BlockTotals {
  std::int64_t free{0};
  std::int64_t used{0};
};

// Pins that have not ended.
struct PinTotals {
  std::int64_t count{0};
  Nanoseconds oldest_ns{0};  // CLOCK_BOOTTIME of the oldest; 0 if there is none

  void add(const PinTotals& more) noexcept {
    const bool is_older = more.count > 0 && (count == 0 || more.oldest_ns < oldest_ns);
    if (is_older) oldest_ns = more.oldest_ns;
    count += more.count;
  }
  bool operator==(const PinTotals&) const = default;
};

// An allocator in this process, or the mailbox of a tenant in another process.
//
// Thread rule: the arbiter calls all methods, under its mutex. None waits for the tenant.
class SlabHolder {
 public:
  virtual ~SlabHolder() = default;

  // kAbsent -> kOpen, with every block free.
  virtual void add_slab(SlabId slab, std::uint32_t generation) noexcept = 0;
  // kOpen and idle -> kAbsent, atomically with respect to users of the slab; false, with nothing
  // changed, if it is not idle.
  virtual bool take_idle(SlabId slab) noexcept {
    if (!load(slab).is_idle() || !close_slab(slab).ok()) return false;
    remove_slab(slab);
    return true;
  }
  // kOpen -> kClosed. Blocks that were set aside without data are returned.
  virtual Status close_slab(SlabId slab) noexcept = 0;
  // kOpen or kClosed -> kQuarantined.
  virtual void quarantine_slab(SlabId slab) noexcept = 0;
  // Any -> kAbsent. Forgets remaining blocks and pins.
  virtual void remove_slab(SlabId slab) noexcept = 0;

  // Notifies the holder that it may now use a slab which add_slab() added without notice.
  virtual void notify(SlabId) noexcept {}
  virtual bool was_notified(SlabId) const noexcept { return false; }

  virtual SlabLoad load(SlabId slab) const noexcept = 0;
  virtual BlockTotals totals() const noexcept = 0;
  virtual PinTotals pin_totals() const noexcept = 0;

  // True if the holder reports a slab that becomes idle. Otherwise the arbiter has to check.
  virtual bool reports_idle() const noexcept { return true; }
  // True if the holder returned an open slab by itself.
  virtual bool has_given(SlabId) const noexcept { return false; }
  // Called when the holder is proven gone: from now on every slab is idle.
  virtual void lose() noexcept {}
  // Called after each change of the arbiter's records; notifies the holder of the change.
  virtual void settle() noexcept {}

  // Internal unless the slab has the state `use`, at `generation` if it is not absent.
  virtual Status audit_slab(SlabId slab, SlabUse use, std::uint32_t generation) const noexcept = 0;
  // Recounts everything.
  virtual Status audit() const noexcept = 0;
};

}  // namespace rose::memory
