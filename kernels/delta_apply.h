// delta_apply_kernel: applies deltas to arrays, or undoes them. delta_apply_digest_kernel: the
// same, and sums up the changes of the arrays' digests.
#pragma once

#include "box.h"

namespace rose::kernels {

struct ApplyArray {
  const u64* entries;
  const u64* offsets;  // start of each block's payload, in words
  const u32* payload;
  u64 payload_words;
  Box weights;
  u64 width;
  u64 count;
  u64 first_cta;  // number of the array's first CTA in the grid; ascending over the arrays
  u64* digest;    // two sums, to which the change of the array's digest is added; or null
};

// As many arrays as fit into 4,096 bytes, the most that every driver accepts as arguments.
constexpr u32 kApplyArraysMax = 23;

// One CTA of threads_to_read(block_elements) threads per delta block. Each block is checked before
// any of its changes is written. A corrupt block changes nothing, and `bad_block` becomes the
// lowest number that a corrupt block has in its array. To apply a part of a delta, pass that part
// of the table, and `weights` from the part's first element on. Array 0 begins at CTA 0, and no
// array is empty.
struct DeltaApplyParams {
  u64 arrays;
  u64 block_elements;
  u64* bad_block;  // ~0 at first
  u64 is_undo;     // 0 or 1; as wide as the rest, so that the struct has no padding
  ApplyArray at[kApplyArraysMax];
};
static_assert(sizeof(DeltaApplyParams) <= 4096);

}  // namespace rose::kernels
