// The signs of differences as bits, several at a time.
#pragma once

#include <cstdint>
#include <cstring>

#include "transfer/changes.h"

namespace rose::transfer {

inline constexpr std::uint32_t kSignsAtOnce = 32;

// The signs of the elements in eight bytes; the lowest bit is the sign of the first element.
template <ElementBits T>
std::uint32_t signs_of_word(const T* differences) noexcept {
  constexpr std::uint32_t kInWord = 8 / sizeof(T);
  constexpr std::uint64_t kOnes = ~std::uint64_t{0} / ((std::uint64_t{1} << kWidth<T>)-1);
  // A product with kCarry moves the sign of element j from bit w * j to bit 64 - kInWord + j. All
  // other bits of the product are lower.
  constexpr std::uint64_t kCarry = [] {
    std::uint64_t carry = 0;
    for (std::uint32_t j = 0; j < kInWord; ++j) {
      carry |= std::uint64_t{1} << (64 - kInWord - j * kWidth<T> + j);
    }
    return carry;
  }();
  std::uint64_t word = 0;
  std::memcpy(&word, differences, sizeof word);
  return static_cast<std::uint32_t>((word >> (kWidth<T> - 1) & kOnes) * kCarry >> (64 - kInWord));
}

// The signs of the first kSignsAtOnce of `count` differences, or of all if there are fewer.
template <ElementBits T>
std::uint32_t signs_of(const T* differences, std::uint32_t count) noexcept {
  constexpr std::uint32_t kInWord = 8 / sizeof(T);
  std::uint32_t signs = 0;
  if (count >= kSignsAtOnce) {
    for (std::uint32_t i = 0; i < kSignsAtOnce; i += kInWord) {
      signs |= signs_of_word(differences + i) << i;
    }
  } else {
    for (std::uint32_t i = 0; i < count; ++i) signs |= sign_of(differences[i]) << i;
  }
  return signs;
}

}  // namespace rose::transfer
