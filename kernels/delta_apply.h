// delta_apply_kernel: a delta put on an array, or taken back off it.
#pragma once

#include "box.h"

namespace rose::kernels {

// One CTA of block_elements / kElementsOfThread threads for each delta block. A block is checked
// before it is written: one that is corrupt changes nothing, and the least number of such a block
// is left in `bad_block`. A part of a delta is applied with its part of the table, and with
// `weights` from its first element on.
struct DeltaApplyParams {
  const u64* entries;
  const u64* offsets;  // where each block's payload starts, in words
  const u32* payload;
  u64 payload_words;
  Box weights;
  u64 width;
  u64 count;
  u64 block_elements;
  u64* bad_block;  // ~0 before
  u64 is_undo;     // 0 or 1; as wide as the rest, so that no byte of the struct is padding
};

}  // namespace rose::kernels
