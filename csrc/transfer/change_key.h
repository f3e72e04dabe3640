// The size of a change of a bf16 element, by the kernels' formula. docs/protocol.md, "Deltas".
#pragma once

#include <cstdint>

#include "kernels/change_key.h"

namespace rose::transfer {

using kernels::change_key;

inline constexpr std::uint32_t kKeyNan = kernels::kLargestKey;
inline constexpr std::uint32_t kNothingSent = kernels::kKeys;  // a threshold above every key

}  // namespace rose::transfer
