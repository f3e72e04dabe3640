// How large a change of a bf16 element is. docs/protocol.md, "Top-k".
#pragma once

#include <bit>
#include <cstdint>

namespace rose::transfer {

inline constexpr std::uint32_t kKeyNan = 0x7FFF;
inline constexpr std::uint32_t kNothingSent = 0x8000;  // a threshold that no key reaches

inline float widen_flushed(std::uint16_t bits) noexcept {
  const bool is_subnormal = (bits & 0x7F80) == 0;
  return std::bit_cast<float>((is_subnormal ? bits & 0x8000U : std::uint32_t{bits}) << 16);
}

// 0 to kKeyNan. Subnormals become zeros by masks, before and after the subtraction, so it does not
// matter whether this thread's floating point flushes them too. It must round to nearest.
inline std::uint32_t change_key(std::uint16_t fresh, std::uint16_t old) noexcept {
  const float difference = widen_flushed(fresh) - widen_flushed(old);
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(difference) & 0x7FFF'FFFF;
  if (bits > 0x7F80'0000) return kKeyNan;
  return (bits & 0x7F80'0000) == 0 ? 0 : bits >> 16;
}

}  // namespace rose::transfer
