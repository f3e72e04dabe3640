// delta_apply_16ki_kernel, delta_apply_64ki_kernel: a delta put on an array, or taken back off it.
#pragma once

#include "device.h"

namespace rose::kernels {

// One CTA of kThreadsOf<block elements> threads for each delta block. A block is checked before it
// is written: one that is corrupt changes nothing, and the least number of such a block is left in
// `bad_block`.
struct DeltaApplyParams {
  const u64* entries;
  const u64* offsets;  // where each block's payload starts, in words
  const u32* payload;
  u64 payload_words;
  u16* weights;
  u64 count;
  u64* bad_block;  // ~0 before
  u64 is_undo;     // 0 or 1; as wide as the rest, so that no byte of the struct is padding
};

}  // namespace rose::kernels
