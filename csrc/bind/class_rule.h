// A class rule from Python.
#pragma once

#include <array>
#include <cstdint>
#include <tuple>

#include "transfer/class_rule.h"

namespace rose::bind {

// shift, exponent_bits, origin, all_mask, magnitude_bits
using Rule = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t,
                        std::array<std::uint8_t, transfer::kClasses>>;

inline transfer::ClassRule class_rule_of(const Rule& rule) {
  const auto& [shift, exponent_bits, origin, all_mask, magnitude_bits] = rule;
  return {.shift = shift,
          .exponent_bits = exponent_bits,
          .origin = origin,
          .all_mask = all_mask,
          .magnitude_bits = magnitude_bits};
}

}  // namespace rose::bind
