// What a tenant could need, and the bell that rings when it could be short.
#include <algorithm>
#include <limits>
#include <string>

#include "base/futex.h"
#include "memory/arbiter.h"

namespace rose::memory {

namespace {

constexpr std::int64_t kNoLevel = std::numeric_limits<std::int64_t>::min();
// More blocks than any pool has; levels and sums of two stay far from 2^63.
constexpr std::int64_t kBlocksMax = std::int64_t{1} << 48;
constexpr Nanoseconds kTimeoutMax = Nanoseconds{1} << 62;

}  // namespace

std::int64_t Arbiter::low_water(PartitionId id, std::int32_t unowned) const noexcept {
  const Watch& watch = watches_[static_cast<std::size_t>(id)];
  if (watch.demand_blocks == 0) return kNoLevel;
  return watch.demand_blocks - std::int64_t{unowned} * watch.blocks_per_slab;
}

// With nothing lent there is nothing to be taken back, so nobody is rung for.
void Arbiter::arm(PartitionId id) noexcept {
  SlabHolder* holder = holder_of(id);
  if (holder == nullptr) return;
  holder->set_low_water(leases_.empty() ? kNoLevel : low_water(id, slabs_.unowned()));
}

Result<bool> Arbiter::watch(PartitionId id, std::int64_t demand_blocks,
                            std::int32_t blocks_per_slab, std::int64_t taking) noexcept {
  if (demand_blocks < 0 || demand_blocks > kBlocksMax || blocks_per_slab < 1) {
    return Status::invalid_argument("a demand of " + std::to_string(demand_blocks) + " blocks, " +
                                    std::to_string(blocks_per_slab) +
                                    " in a slab: 0 <= demand and 1 <= blocks must hold");
  }
  {
    const std::lock_guard lock{books_};
    ROSE_TRY(check_live(id));
    watches_[static_cast<std::size_t>(id)] = {demand_blocks, blocks_per_slab};
    arm(id);
  }
  return is_short(id, taking);
}

Result<bool> Arbiter::is_short(PartitionId id, std::int64_t taking) const noexcept {
  const std::lock_guard lock{books_};
  ROSE_TRY(check_known(id));
  const SlabHolder* holder = holder_of(id);
  if (holder == nullptr || leases_.empty()) return false;
  return holder->totals().free - std::clamp<std::int64_t>(taking, 0, kBlocksMax) <
         low_water(id, slabs_.unowned());
}

// Whether a grant of n slabs leaves the tenant what it was certified with, and could need.
bool Arbiter::is_covered(const CountedOn& counted_on, std::int32_t n) const noexcept {
  const SlabHolder* holder = holder_of(counted_on.partition);
  const std::int64_t free = holder == nullptr ? 0 : holder->totals().free;
  return free >= counted_on.free_blocks &&
         free >= low_water(counted_on.partition, slabs_.unowned() - n);
}

// ---- the bell

// Once is enough: whoever listens looks at everything and calls watch() again.
void Arbiter::on_low_water() noexcept {
  for (const auto& holder : holders_) {
    if (holder != nullptr) holder->set_low_water(kNoLevel);
  }
  ring();
}

void Arbiter::ring() noexcept {
  rung_.fetch_add(1);
  if (listeners_.load() > 0) futex_wake_all(rung_);
}

std::uint32_t Arbiter::listen(std::uint32_t heard, Nanoseconds timeout_ns) noexcept {
  const BootClock real;
  const Nanoseconds end_ns = real.now_ns() + std::min(timeout_ns, kTimeoutMax);
  listeners_.fetch_add(1);
  for (Nanoseconds left_ns = timeout_ns; rung_.load() == heard && left_ns > 0;
       left_ns = end_ns - real.now_ns()) {
    futex_wait(rung_, heard, left_ns);
  }
  listeners_.fetch_sub(1);
  return rung_.load();
}

}  // namespace rose::memory
