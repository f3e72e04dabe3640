// The class of an element, which depends on its old bits. docs/protocol.md, "STRAT".
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "transfer/changes.h"

namespace rose::transfer {

inline constexpr std::uint32_t kClasses = 8;

// Maps old elements to classes; one rule for all blocks of a delta.
struct ClassRule {
  std::uint32_t shift{0};
  std::uint32_t exponent_bits{0};
  std::uint32_t origin{0};
  std::uint32_t all_mask{0};  // bit c: class c lists the size of every change
  std::array<std::uint8_t, kClasses> magnitude_bits{};

  bool is_all(std::uint32_t of_class) const noexcept { return (all_mask >> of_class & 1) != 0; }

  // Elements with equal values of these bits have the same class.
  template <ElementBits T>
  T exponent_mask() const noexcept {
    return static_cast<T>(((std::uint64_t{1} << exponent_bits) - 1) << shift);
  }

  template <ElementBits T>
  std::uint32_t class_of(T bits) const noexcept {
    const std::uint64_t exponent =
        std::uint64_t{bits} >> shift & ((std::uint64_t{1} << exponent_bits) - 1);
    const std::uint64_t above = exponent - std::min<std::uint64_t>(exponent, origin);
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(above, kClasses - 1));
  }
};

// Corrupt if the rule is invalid for elements of `width` bits.
inline Status check_rule(const ClassRule& rule, std::uint32_t width) noexcept {
  const bool is_in_element = rule.shift <= width && rule.exponent_bits <= width - rule.shift;
  const bool are_bytes = rule.origin <= 0xFF && rule.all_mask <= 0xFF;
  const auto is_narrow = [width](std::uint8_t bits) noexcept { return bits < width; };
  if (is_in_element && are_bytes && std::ranges::all_of(rule.magnitude_bits, is_narrow)) return {};
  const std::string most = std::to_string(width);
  return Status::corrupt("the class rule does not fit elements of " + most +
                         " bits: shift + exponent_bits must be at most " + most +
                         ", each of magnitude_bits less than " + most +
                         ", and origin and all_mask at most 255");
}

}  // namespace rose::transfer
