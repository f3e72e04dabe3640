// topk_unpack_kernel: a delta as positions and the values they get.
#pragma once

#include "box.h"

namespace rose::kernels {

// One CTA of block_elements / kElementsOfThread threads for each delta block. A block that is
// corrupt, or whose place in the output lies outside it, writes nothing, and the least number of
// such a block is left in `bad_block`.
struct TopkUnpackParams {
  const u64* entries;
  const u64* offsets;        // where each block's payload starts, in words
  const u64* first_outputs;  // where each block's changes start: the changes of those before
  const u32* payload;
  u64 payload_words;
  Box base;
  u64 width;
  u64 count;
  u64 block_elements;
  std::int64_t* positions;  // ascending
  u8* values;               // as wide as the elements, and aligned to them
  u64 output_count;
  u64* bad_block;  // ~0 before
};

}  // namespace rose::kernels
