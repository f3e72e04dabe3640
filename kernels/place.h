// Addresses of a box's elements, and access to them by width.
#pragma once

#include "box.h"

namespace rose::kernels {

// Offset of an element from the base of its box, in elements, and the number of elements from it to
// the end of its row.
struct Place {
  u64 offset;
  u64 rest;
};

ROSE_DEVICE u64 divide(u64 number, const Divisor& by) {
  return by.number == 1 ? number : __umul64hi(number, by.magic) >> by.shift;
}

ROSE_DEVICE Place place_of(const Box& box, u64 index) {
  // Most arrays are one row and need no division.
  if (index < box.sizes[2].number) {
    return {index * box.strides[3], box.sizes[2].number - index};
  }
  const u64 row = divide(index, box.sizes[2]);
  const u64 plane = divide(row, box.sizes[1]);
  const u64 cube = divide(plane, box.sizes[0]);
  const u64 column = index - row * box.sizes[2].number;
  const u64 offset = column * box.strides[3] +
                     (row - plane * box.sizes[1].number) * box.strides[2] +
                     (plane - cube * box.sizes[0].number) * box.strides[1] + cube * box.strides[0];
  return {offset, box.sizes[2].number - column};
}

// Element `at` of flat memory whose elements have `width` bits, 8, 16 or 32.
ROSE_DEVICE u32 load_bits(const void* base, u64 at, u32 width) {
  if (width == 16) return static_cast<const u16*>(base)[at];
  return width == 8 ? static_cast<const u8*>(base)[at] : static_cast<const u32*>(base)[at];
}

ROSE_DEVICE void store_bits(void* base, u64 at, u32 width, u32 bits) {
  if (width == 16) {
    static_cast<u16*>(base)[at] = static_cast<u16>(bits);
  } else if (width == 8) {
    static_cast<u8*>(base)[at] = static_cast<u8>(bits);
  } else {
    static_cast<u32*>(base)[at] = bits;
  }
}

// Calls visit(zero) with a zero of the type with `width` bits.
template <typename Visit>
ROSE_DEVICE void with_width(u64 width, const Visit& visit) {
  if (width == 16) {
    visit(u16{});
  } else if (width == 8) {
    visit(u8{});
  } else {
    visit(u32{});
  }
}

}  // namespace rose::kernels
