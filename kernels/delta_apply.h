// delta_apply_kernel: applies a delta to an array, or undoes it.
#pragma once

#include "box.h"

namespace rose::kernels {

// One CTA of threads_to_read(block_elements) threads per delta block. Each block is checked
// before it is written. A corrupt block changes nothing, and `bad_block` becomes the lowest number
// of such a block. To apply a part of a delta, pass its part of the table, and `weights` from its
// first element on.
struct DeltaApplyParams {
  const u64* entries;
  const u64* offsets;  // start of each block's payload, in words
  const u32* payload;
  u64 payload_words;
  Box weights;
  u64 width;
  u64 count;
  u64 block_elements;
  u64* bad_block;  // ~0 at first
  u64 is_undo;     // 0 or 1; as wide as the rest, so that the struct has no padding
};

}  // namespace rose::kernels
