// digest_kernel: the digest of a flat array of 16-bit elements.
#pragma once

#include "digest_sum.h"

namespace rose::kernels {

constexpr u32 kDigestThreads = 256;

struct DigestParams {
  const u16* bits;  // at any multiple of two bytes
  u64 count;
  u64 first_index;  // of bits[0] in its tensor, a multiple of four
  u64 seed;
  u64* sums;  // two; the digest is added to them
};

}  // namespace rose::kernels
