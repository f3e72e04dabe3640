// Launches for several arrays: CTAs with consecutive numbers handle the blocks of one array.
#pragma once

#include "device.h"

namespace rose::kernels {

// Returns the index in `params.at` of a CTA's array.
template <typename Params>
ROSE_DEVICE u32 array_of_cta(const Params& params, u32 cta) {
  u32 first = 0;
  u32 end = static_cast<u32>(params.arrays);
#pragma unroll 1
  while (end - first > 1) {
    const u32 middle = (first + end) / 2;
    const bool is_after = params.at[middle].first_cta > cta;
    first = is_after ? first : middle;
    end = is_after ? middle : end;
  }
  return first;
}

// Returns the number of a CTA's block in the CTA's array.
template <typename Array>
ROSE_DEVICE u32 number_in(const Array& array, u32 cta) {
  return cta - static_cast<u32>(array.first_cta);
}

}  // namespace rose::kernels
