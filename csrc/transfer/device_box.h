// Builds the boxes that kernels take as arguments; see kernels/box.h.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "kernels/box.h"

namespace rose::transfer {

// Returns the constants with which a kernel divides by `number` > 0 by multiplication.
constexpr kernels::Divisor divisor_of(std::uint64_t number) noexcept {
  if (number < 2) return {number, 0, 0};
  const auto shift = static_cast<std::uint64_t>(std::bit_width(number - 1)) - 1;
  const unsigned __int128 one = static_cast<unsigned __int128>(1) << (64 + shift);
  return {number, static_cast<std::uint64_t>((one + number - 1) / number), shift};
}

// A box without its address: the sizes of the three inner dimensions and the strides of all four,
// in elements.
struct DeviceShape {
  std::array<std::uint64_t, 3> sizes{1, 1, 1};
  std::array<std::uint64_t, 4> strides{0, 0, 0, 1};

  static constexpr DeviceShape row(std::uint64_t count) noexcept {
    return {.sizes = {1, 1, count == 0 ? 1 : count}};
  }
};

// Returns the box at the device address `base`.
constexpr kernels::Box device_box(std::uint8_t* base, const DeviceShape& shape) noexcept {
  const auto& [sizes, strides] = shape;
  return {base,
          {divisor_of(sizes[0]), divisor_of(sizes[1]), divisor_of(sizes[2])},
          {strides[0], strides[1], strides[2], strides[3]}};
}

}  // namespace rose::transfer
