// topk_unpack_16ki_kernel, topk_unpack_64ki_kernel: a delta as positions and the values they get.
#pragma once

#include "device.h"

namespace rose::kernels {

// One CTA of kThreadsOf<block elements> threads for each delta block. A block that is corrupt, or
// whose place in the output lies outside it, writes nothing, and the least number of such a block
// is left in `bad_block`.
struct TopkUnpackParams {
  const u64* entries;
  const u64* offsets;        // where each block's payload starts, in words
  const u64* first_outputs;  // where each block's changes start: the changes of those before
  const u32* payload;
  u64 payload_words;
  const u16* base;
  u64 count;
  std::int64_t* positions;  // ascending
  u16* values;
  u64 output_count;
  u64* bad_block;  // ~0 before
};

}  // namespace rose::kernels
