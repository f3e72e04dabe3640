// The sizes of changes for each old exponent, from which a class rule is chosen.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "transfer/changes.h"

namespace rose::transfer {

// The histogram has one row per exponent. Its columns are: the number of elements; the number of
// changes for each bit width of size - 1, 0 to 32; the number of changes of size 2 or more for each
// bit width of size - 2.
struct ClassHistogram {
  static constexpr std::uint32_t kExponentBitsMax = 8;
  static constexpr std::uint32_t kWidths = 33;
  static constexpr std::uint32_t kAllFrom = 1;
  static constexpr std::uint32_t kFewFrom = kAllFrom + kWidths;
  static constexpr std::uint32_t kColumns = kFewFrom + kWidths;
};

// Adds `count` elements to `rows`. The exponent, which selects the row, is the `exponent_bits` <=
// kExponentBitsMax bits from bit `shift` on.
template <ElementBits T>
void add_to_histogram(const T* fresh, const T* old, std::size_t count, std::uint32_t shift,
                      std::uint32_t exponent_bits, std::uint64_t* rows) noexcept {
  const std::uint32_t mask = (1U << exponent_bits) - 1;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t exponent = std::uint32_t{old[i]} >> shift & mask;
    std::uint64_t* const row = rows + std::size_t{ClassHistogram::kColumns} * exponent;
    ++row[0];
    if (fresh[i] == old[i]) continue;
    const std::uint32_t size = size_of(static_cast<T>(fresh[i] - old[i]));
    ++row[ClassHistogram::kAllFrom + static_cast<std::uint32_t>(std::bit_width(size - 1))];
    if (size == 1) continue;
    ++row[ClassHistogram::kFewFrom + static_cast<std::uint32_t>(std::bit_width(size - 2))];
  }
}

}  // namespace rose::transfer
