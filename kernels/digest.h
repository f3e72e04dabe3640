// digest_kernel: the digest of an array.
#pragma once

#include "box.h"
#include "digest_sum.h"

namespace rose::kernels {

constexpr u32 kDigestThreads = 256;

struct DigestParams {
  Box bits;
  u64 width;
  u64 count;
  u64 first_index;  // index of the array's first element in its tensor, at a multiple of 8 bytes
  u64 seed;
  u64* sums;  // two sums, to which the digest is added
};

}  // namespace rose::kernels
