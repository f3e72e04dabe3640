// Computes one code of quantised weights. Signs and NaNs are taken from the bits of the weight, not
// of its quotient, because processors differ there. docs/protocol.md, "Quantised weights".
#pragma once

#include "device.h"

namespace rose::kernels {

enum class CodeKind : u64 { kFp8 = 0, kInt8 = 1 };

constexpr u32 kSignBit = 0x8000;
constexpr u32 kMagnitude = 0x7FFF;
constexpr u32 kInfinity = 0x7F80;  // magnitude of infinity; larger ones are NaNs
constexpr u32 kFp8Nan = 0x7F;
constexpr u32 kFp8Largest = 0x7E;

// The magnitude of a bf16; 0 if it is not finite. Magnitudes are ordered like absolute values.
ROSE_HD inline u32 finite_magnitude(u32 bits) {
  const u32 magnitude = bits & kMagnitude;
  return magnitude < kInfinity ? magnitude : 0;
}

ROSE_HD inline float widened_magnitude(u32 magnitude) {
  return __builtin_bit_cast(float, magnitude << 16);
}

// Divides as IEEE 754 does, under all compiler flags, and keeps subnormals.
ROSE_HD inline float divided(float number, float by) {
#ifdef __CUDA_ARCH__
  return __fdiv_rn(number, by);
#else
  return number / by;
#endif
}

ROSE_HD constexpr float largest_of(CodeKind kind) {
  return kind == CodeKind::kFp8 ? 448.0F : 127.0F;
}

// `amax` is the largest finite magnitude of the block. Even for the smallest one above 0, 2^-133,
// the scale is above 0.
ROSE_HD inline float scale_of(u32 amax, CodeKind kind) {
  return amax == 0 ? 1.0F : divided(widened_magnitude(amax), largest_of(kind));
}

// Returns a quotient >= 0 as e4m3fn, rounded half to even, at most 448.
ROSE_HD inline u32 fp8_magnitude(float quotient) {
  constexpr u32 kSmallestNormal = 0x3C800000;  // 2^-6
  constexpr u32 kDroppedBits = 20;             // of the mantissa; three bits stay
  constexpr u32 kRebias = (127 - 7) << 3;
  constexpr float kOfUnit = 16384.0F;  // its last bit is 2^-9, the unit of subnormals
  const u32 bits = __builtin_bit_cast(u32, quotient);
  if (bits < kSmallestNormal) {
    return __builtin_bit_cast(u32, quotient + kOfUnit) - __builtin_bit_cast(u32, kOfUnit);
  }
  const u32 half = (1U << (kDroppedBits - 1)) - 1 + (bits >> kDroppedBits & 1);
  const u32 code = ((bits + half) >> kDroppedBits) - kRebias;
  return code < kFp8Largest ? code : kFp8Largest;
}

// Returns a quotient >= 0 as an integer, rounded half to even, at most 127.
ROSE_HD inline u32 int8_magnitude(float quotient) {
  constexpr float kOfUnit = 8388608.0F;  // 2^23: its last bit is 1
  const float kept = quotient < 127.0F ? quotient : 127.0F;
  return __builtin_bit_cast(u32, kept + kOfUnit) - __builtin_bit_cast(u32, kOfUnit);
}

// Returns the code of a bf16. `scale` is above 0 and finite.
template <CodeKind kKind>
ROSE_HD inline u8 code_of(u32 bits, float scale) {
  const u32 magnitude = bits & kMagnitude;
  const bool is_nan = magnitude > kInfinity;
  const bool is_negative = (bits & kSignBit) != 0;
  const float quotient = divided(widened_magnitude(magnitude), scale);
  if constexpr (kKind == CodeKind::kFp8) {
    const u32 code = is_nan ? kFp8Nan : fp8_magnitude(quotient);
    return static_cast<u8>(is_negative ? code | 0x80 : code);
  } else {
    const u32 code = is_nan ? 0 : int8_magnitude(quotient);
    return static_cast<u8>(is_negative ? 0U - code : code);
  }
}

}  // namespace rose::kernels
