// strat_unpack_kernel: the STRAT blocks of a link's delta as differences, which delta_pack makes
// the blocks of again that strat_pack was given.
#pragma once

#include "box.h"
#include "strat_code.h"

namespace rose::kernels {

// One CTA of block_elements / kElementsOfThread threads for each delta block. Blocks of another
// kind are passed by: their differences stay 0. The least number of a STRAT block that is corrupt
// is left in `bad_block`; what its differences are then, nobody knows.
struct StratUnpackParams {
  const u64* entries;
  const u64* offsets;  // where each block's payload starts, in words
  const u32* payload;
  u64 payload_words;
  Box base;         // what the delta was made from
  u8* differences;  // flat, aligned to their width; 0 before
  u64 width;
  u64 count;
  u64 block_elements;
  StratRule rule;
  u64* bad_block;  // ~0 before
};

}  // namespace rose::kernels
