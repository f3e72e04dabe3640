// The limits of one tenant. Pure arithmetic: the arbiter keeps the numbers and asks before acting.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

namespace rose::memory {

using PartitionId = std::int32_t;
inline constexpr PartitionId kNobody = -1;

// `quarantined` slabs are memory that this tenant may still touch but no longer owns. They count
// against its own reserve and limit, so that other tenants do not pay for its delay.
struct Partition {
  PartitionId id{kNobody};
  std::string name;
  std::int32_t reserve_slabs{0};
  std::int32_t limit_slabs{0};
  std::int32_t held{0};
  std::int32_t quarantined{0};
  bool is_live{true};  // false after a drop, until the partition is reopened

  // Slabs that must stay unowned so that this tenant can always fill its reserve.
  std::int32_t shortfall() const noexcept {
    return is_live ? std::max(0, reserve_slabs - held - quarantined) : 0;
  }
  // Slabs that this tenant may still get; its limit includes its quarantined slabs.
  std::int32_t headroom() const noexcept {
    return is_live ? std::max(0, limit_slabs - held - quarantined) : 0;
  }
};

// Number of unowned slabs that `asking` may get so that the reserves of all others can still be
// filled. Law: granting n <= spare_for(...) keeps `unowned >= sum of shortfalls` true.
inline std::int32_t spare_for(std::span<const Partition> partitions, PartitionId asking,
                              std::int32_t unowned) noexcept {
  std::int64_t spare = unowned;
  for (const Partition& other : partitions) {
    if (other.id != asking) spare -= other.shortfall();
  }
  return static_cast<std::int32_t>(std::max<std::int64_t>(spare, 0));
}

}  // namespace rose::memory
