// The limits of one tenant. Pure arithmetic: the arbiter keeps the numbers and asks before acting.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

namespace rose::memory {

using PartitionId = std::int32_t;
inline constexpr PartitionId kNobody = -1;

// `quarantined` slabs are memory that this tenant may still touch but no longer owns: they count
// against its own floor and ceiling, so others do not pay for its lateness.
struct Partition {
  PartitionId id{kNobody};
  std::string name;
  std::int32_t reserve_slabs{0};
  std::int32_t limit_slabs{0};
  std::int32_t held{0};
  std::int32_t quarantined{0};
  bool is_live{true};  // false for ever after a drop

  // Slabs that must stay unowned so that this tenant can always fill its reserve.
  std::int32_t shortfall() const noexcept {
    return is_live ? std::max(0, reserve_slabs - held - quarantined) : 0;
  }
  // Slabs it may still get; its ceiling includes its quarantined slabs.
  std::int32_t headroom() const noexcept {
    return is_live ? std::max(0, limit_slabs - held - quarantined) : 0;
  }
};

// Unowned slabs that `asking` may get while the floors of all others stay filled.
// Law: granting n <= spare_for(...) keeps `unowned >= sum of shortfalls` true.
inline std::int32_t spare_for(std::span<const Partition> partitions, PartitionId asking,
                              std::int32_t unowned) noexcept {
  std::int64_t spare = unowned;
  for (const Partition& other : partitions) {
    if (other.id != asking) spare -= other.shortfall();
  }
  return static_cast<std::int32_t>(std::max<std::int64_t>(spare, 0));
}

}  // namespace rose::memory
