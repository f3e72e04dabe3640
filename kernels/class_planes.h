// Which elements of a delta block are of which class of their old exponent, as masks of bits.
#pragma once

#include "eight.h"
#include "strat_code.h"

namespace rose::kernels {

// Bit i of the planes together: the class of element i.
struct ClassPlanes {
  alignas(16) u32 bits[kClassBits][kMaskWordsMax];

  // The 32 elements of `word`, of which `inside` there are, that are of class c.
  ROSE_DEVICE u32 members(u32 word, u32 inside, u32 c) const {
    u32 mask = inside;
#pragma unroll
    for (u32 i = 0; i < kClassBits; ++i) {
      mask &= (c >> i & 1) != 0 ? bits[i][word] : ~bits[i][word];
    }
    return mask;
  }
};

// The bits of mask word `word` that are elements of a block of `elements`.
ROSE_DEVICE u32 inside_of(u32 word, u32 elements) {
  if (elements <= word * 32) return 0;
  const u32 rest = elements - word * 32;
  return low_mask(rest < 32 ? rest : 32);
}

// Reads the old elements of a block and fills the planes. All threads of the CTA call it; a barrier
// must follow.
template <typename T>
ROSE_DEVICE void fill_planes(const Box& old, u64 first, u64 count, u64 block_elements,
                             const StratRule& rule, ClassPlanes& planes) {
#pragma unroll 1
  for (u32 i = threadIdx.x; i < block_elements / kEight; i += blockDim.x) {
    const Eight<T> eight = load_eight<T>(old, first + i * kEight, count);
    u32 masks[kClassBits]{};
#pragma unroll
    for (u32 j = 0; j < kEight; ++j) {
      const u32 c = class_of(eight.at(j), rule);
#pragma unroll
      for (u32 k = 0; k < kClassBits; ++k) masks[k] |= (c >> k & 1) << j;
    }
#pragma unroll
    for (u32 k = 0; k < kClassBits; ++k) {
      reinterpret_cast<u8*>(planes.bits[k])[i] = static_cast<u8>(masks[k]);
    }
  }
}

}  // namespace rose::kernels
