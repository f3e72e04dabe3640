// The demand of the watched partition, and the bell that rings when the partition is short.
#include <algorithm>
#include <string>

#include "base/futex.h"
#include "memory/arbiter.h"

namespace rose::memory {

namespace {

// More blocks than any pool has; sums of such counts stay far below 2^63.
constexpr std::int64_t kBlocksMax = std::int64_t{1} << 48;

}  // namespace

Result<bool> Arbiter::watch(PartitionId id, std::int64_t demand_blocks,
                            std::int32_t blocks_per_slab, std::int64_t taking) noexcept {
  if (demand_blocks < 0 || demand_blocks > kBlocksMax || blocks_per_slab < 1) {
    return Status::invalid_argument(
        "demand_blocks must be in 0..2^48 and blocks_per_slab at least 1, got " +
        std::to_string(demand_blocks) + " and " + std::to_string(blocks_per_slab));
  }
  {
    const std::lock_guard lock{books_};
    ROSE_TRY(check_live(id));
    const bool is_over = demand_blocks == 0;
    watch_ = {is_over ? kNobody : id, demand_blocks, blocks_per_slab, !is_over};
  }
  return is_short(id, taking);
}

// While nothing is lent, nothing could be taken back, so no partition counts as short.
Result<bool> Arbiter::is_short(PartitionId id, std::int64_t taking) const noexcept {
  const std::lock_guard lock{books_};
  ROSE_TRY(check_known(id));
  if (id != watch_.partition || leases_.empty() || holder_of(id) == nullptr) return false;
  const std::int64_t left =
      holder_of(id)->totals().free - std::clamp<std::int64_t>(taking, 0, kBlocksMax);
  return left < low_water(slabs_.unowned());
}

// Returns how many of n slabs the admission lends; 0 if the lender is watched and would then be
// short.
Result<std::int32_t> Arbiter::admitted(Admission& admission, PartitionId id,
                                       std::int32_t n) noexcept {
  ROSE_TRY(check_known(admission.lender));
  const SlabHolder* holder = holder_of(admission.lender);
  const std::int64_t free = holder == nullptr ? 0 : holder->totals().free;
  const Result<std::int32_t> most = admission.admit({epoch_, id, n, slabs_.unowned(), free});
  const bool is_watched = admission.lender == watch_.partition;
  if (!most.ok() || !is_watched) return most;
  return free >= low_water(slabs_.unowned() - most.value()) ? most.value() : 0;
}

// ---- the bell

// One ring is enough: the listener then checks everything and calls watch() again.
void Arbiter::on_blocks_taken(const SlabHolder& taker) noexcept {
  if (!watch_.is_armed || leases_.empty() || !is_of_watched(taker)) return;
  if (holder_of(watch_.partition)->totals().free >= low_water(slabs_.unowned())) return;
  watch_.is_armed = false;
  ring();
}

void Arbiter::ring() noexcept {
  rung_.fetch_add(1);
  if (listeners_.load() > 0) futex_wake_all(rung_);
}

std::uint32_t Arbiter::listen(std::uint32_t seen, Nanoseconds timeout_ns) noexcept {
  const BootClock real;
  const Nanoseconds end_ns = real.now_ns() + std::min(timeout_ns, kTimeoutMax);
  {
    const Transaction transaction{*this};
    is_listened_to_ = timeout_ns > 0;
  }
  listeners_.fetch_add(1);
  for (Nanoseconds left_ns = timeout_ns; rung_.load() == seen && left_ns > 0;
       left_ns = end_ns - real.now_ns()) {
    futex_wait(rung_, seen, left_ns);
  }
  listeners_.fetch_sub(1);
  const Transaction transaction{*this};
  return rung_.load();
}

}  // namespace rose::memory
