// The changes of one block: found by a pack, read by a reader, and written by an encoder.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace rose::transfer {

// An element as a number modulo 2^w, whatever its type.
template <typename T>
concept ElementBits = std::same_as<T, std::uint8_t> || std::same_as<T, std::uint16_t> ||
                      std::same_as<T, std::uint32_t>;

template <ElementBits T>
inline constexpr std::uint32_t kWidth = 8 * sizeof(T);

// Number of values that a vector store may write behind the last position or difference of a block.
// All buffers of positions or differences are longer by this number.
inline constexpr std::size_t kChangesSlack = 64;

// The changes of a block. Positions ascend; differences are new - old modulo 2^w and never 0.
template <ElementBits T>
struct BlockChanges {
  std::uint32_t elements{0};
  std::uint32_t changed{0};
  const std::uint16_t* positions{nullptr};
  const T* differences{nullptr};
};

// The size of a nonzero difference, as a signed number: 1 to 2^(w-1).
template <ElementBits T>
constexpr std::uint32_t size_of(T difference) noexcept {
  const bool is_down = (difference >> (kWidth<T> - 1)) != 0;
  return static_cast<T>(is_down ? T{0} - difference : difference);
}

template <ElementBits T>
constexpr std::uint32_t sign_of(T difference) noexcept {
  return static_cast<std::uint32_t>(difference >> (kWidth<T> - 1));
}

}  // namespace rose::transfer
