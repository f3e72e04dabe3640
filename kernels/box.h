// Which elements of memory a kernel takes for its array: up to four dimensions with any strides.
#pragma once

#include "device.h"

namespace rose::kernels {

// The elements of the array are those of the box in row-major order. A flat array is a single row.
// Sizes and strides are those that are left when dimensions that follow one another in memory are
// one; what is missing in front has size 1.
//
// Dividing by a size takes what a processor without division needs: n / number is the upper half of
// n * magic, shifted. It is exact for n < 2^63 with shift = ceil(log2(number)) - 1 and magic =
// ceil(2^(64 + shift) / number); a number of 1 is not divided by.
struct Divisor {
  u64 number;
  u64 magic;
  u64 shift;
};

struct Box {
  u8* base;          // aligned to an element; null only where a kernel says so
  Divisor sizes[3];  // of the inner dimensions, at least 1; the last is a row
  u64 strides[4];    // of all dimensions, in elements
};

}  // namespace rose::kernels
