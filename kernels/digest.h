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
  u64 first_index;  // of the first element in its tensor, at a border of 8 bytes
  u64 seed;
  u64* sums;  // two; the digest is added to them
};

}  // namespace rose::kernels
