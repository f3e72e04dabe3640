// The elements of an array in memory: up to four dimensions with any strides.
#pragma once

#include "device.h"

namespace rose::kernels {

// Division by multiplication: n / number is the upper half of n * magic, shifted right by `shift`.
// It is exact for n < 2^63 with shift = ceil(log2(number)) - 1 and magic = ceil(2^(64 + shift) /
// number). For number = 1 the kernels do not divide.
struct Divisor {
  u64 number;
  u64 magic;
  u64 shift;
};

// The array's elements are those of the box, in row-major order. A flat array is a single row.
// Dimensions that are contiguous in memory are merged; missing outer dimensions have size 1.
struct Box {
  u8* base;          // aligned to an element; null only where a kernel allows it
  Divisor sizes[3];  // sizes of the inner dimensions, >= 1; the last is the row length
  u64 strides[4];    // of all dimensions, in elements
};

// True if `count` elements are adjacent in memory and begin at a multiple of 16 bytes.
ROSE_HD inline bool is_flat(const Box& box, u64 count) {
  return count <= box.sizes[2].number && box.strides[3] == 1 &&
         reinterpret_cast<std::uintptr_t>(box.base) % 16 == 0;
}

}  // namespace rose::kernels
