// topk_unpack_kernel: lists the changes of a delta as positions and new values.
#pragma once

#include "box.h"

namespace rose::kernels {

// One CTA of threads_to_read(block_elements) threads per delta block. A block that is corrupt or
// outside the output writes nothing, and `bad_block` becomes the lowest number of such a block.
struct TopkUnpackParams {
  const u64* entries;
  const u64* offsets;        // start of each block's payload, in words
  const u64* first_outputs;  // start of each block's output: the number of changes before it
  const u32* payload;
  u64 payload_words;
  Box base;
  u64 width;
  u64 count;
  u64 block_elements;
  std::int64_t* positions;  // ascending
  u8* values;               // as wide as the elements, and aligned to their width
  u64 output_count;
  u64* bad_block;  // ~0 at first
};

}  // namespace rose::kernels
