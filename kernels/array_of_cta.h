// Launches for several arrays: CTAs with consecutive numbers handle the blocks of one array.
#pragma once

#include "device.h"

namespace rose::kernels {

// Returns the index in `params.at` of the CTA's array.
template <typename Params>
ROSE_DEVICE u32 array_of_cta(const Params& params) {
  u32 first = 0;
  u32 end = static_cast<u32>(params.arrays);
#pragma unroll 1
  while (end - first > 1) {
    const u32 middle = (first + end) / 2;
    const bool is_after = params.at[middle].first_cta > blockIdx.x;
    first = is_after ? first : middle;
    end = is_after ? middle : end;
  }
  return first;
}

// Returns the number of the CTA's block in the CTA's array.
template <typename Array>
ROSE_DEVICE u32 number_in(const Array& array) {
  return blockIdx.x - static_cast<u32>(array.first_cta);
}

}  // namespace rose::kernels
