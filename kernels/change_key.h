// The size of a bf16 element's change, for top-k. docs/protocol.md, "Deltas".
#pragma once

#include "device.h"

namespace rose::kernels {

constexpr u32 kKeys = 1U << 15;
constexpr u32 kLargestKey = kKeys - 1;

// Returns the element as the bits of a float32. A subnormal becomes zero, so that the key is the
// same on hardware that flushes subnormals.
ROSE_HD inline u32 widened(u16 bits) {
  const u32 kept = (bits & 0x7F80U) == 0 ? bits & 0x8000U : bits;
  return kept << 16;
}

// Returns 0 to kLargestKey. The subtraction must round to nearest; it may flush subnormals.
ROSE_HD inline u32 change_key(u16 now, u16 old) {
  const float difference =
      __builtin_bit_cast(float, widened(now)) - __builtin_bit_cast(float, widened(old));
  const u32 size = __builtin_bit_cast(u32, difference) & 0x7FFFFFFFU;
  if (size > 0x7F800000U) return kLargestKey;
  return size < 0x00800000U ? 0 : size >> 16;
}

}  // namespace rose::kernels
