// How large a change of a bf16 element is, for top-k. docs/protocol.md, "Deltas".
#pragma once

#include "device.h"

namespace rose::kernels {

constexpr u32 kKeys = 1U << 15;
constexpr u32 kLargestKey = kKeys - 1;

// The bits of the element as fp32; a subnormal is a zero, so that a processor or a kernel that
// flushes subnormals gives the same key.
ROSE_HD inline u32 widened(u16 bits) {
  const u32 kept = (bits & 0x7F80U) == 0 ? bits & 0x8000U : bits;
  return kept << 16;
}

// 0 to kLargestKey. It must round to nearest; whether subnormals are flushed does not matter.
ROSE_HD inline u32 change_key(u16 now, u16 old) {
  const float difference =
      __builtin_bit_cast(float, widened(now)) - __builtin_bit_cast(float, widened(old));
  const u32 size = __builtin_bit_cast(u32, difference) & 0x7FFFFFFFU;
  if (size > 0x7F800000U) return kLargestKey;
  return size < 0x00800000U ? 0 : size >> 16;
}

}  // namespace rose::kernels
