// The contents of one class in a STRAT block. docs/protocol.md, "STRAT".
#pragma once

#include <array>
#include <cstdint>

#include "transfer/bit_stream.h"
#include "transfer/class_rule.h"

namespace rose::transfer {

struct ClassBody {
  std::uint32_t elements{0};
  std::uint32_t changed{0};
  std::uint32_t listed{0};
  std::uint32_t large{0};
  std::uint32_t first{0};  // index of its first change among the changes of all classes
};

using ClassBodies = std::array<ClassBody, kClasses>;

// Number of bits in the section of ranks: the positions of a class's changes within the class.
constexpr std::uint32_t bits_of_ranks(const ClassBody& body) noexcept {
  return is_bitmap(body.elements, body.changed) ? body.elements
                                                : StreamShape{body.elements, body.changed}.bits;
}

// Bits of the sections of a class, with changed <= elements, listed <= changed, large <= listed.
constexpr std::uint32_t bits_of_body(const ClassBody& body, bool is_all,
                                     std::uint32_t magnitude_bits, std::uint32_t width) noexcept {
  if (body.changed == 0) return 0;
  std::uint32_t bits = bits_of_ranks(body) + body.changed;
  if (body.listed != 0 && !is_all) bits += StreamShape{body.changed, body.listed}.bits;
  bits += body.listed * magnitude_bits;
  if (body.large != 0) bits += StreamShape{body.listed, body.large}.bits + width * body.large;
  return bits;
}

// Bits of the counts of a class.
constexpr std::uint32_t bits_of_counts(const ClassBody& body, bool is_all) noexcept {
  std::uint32_t bits = gamma_bits(body.changed + 1);
  if (body.changed != 0 && !is_all) bits += gamma_bits(body.listed + 1);
  if (body.listed != 0) bits += gamma_bits(body.large + 1);
  return bits;
}

}  // namespace rose::transfer
