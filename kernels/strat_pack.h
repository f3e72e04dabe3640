// strat_pack_kernel: the blocks of a delta recoded for a link, where that makes them smaller.
#pragma once

#include "box.h"
#include "strat_code.h"

namespace rose::kernels {

// One CTA of block_elements / kElementsOfThread threads for each delta block. The delta is sound,
// and `differences` is what it makes of zeros: the differences of all elements.
//
// Blocks reserve their payloads in the arena in any order, as in delta_pack: also those that stay
// as they were, whose payload is copied. A block that finds no room is kDeferred.
struct StratPackParams {
  const u64* entries;
  const u64* offsets;  // where each block's payload starts, in words
  const u32* payload;
  Box base;               // what the delta was made from
  const u8* differences;  // flat, aligned to their width
  u64 width;
  u64 count;
  u64 block_elements;
  StratRule rule;
  u32* arena;
  u64 arena_words;
  u64* cursor;  // 0 before
  u64* link_entries;
  u64* link_offsets;  // in words; 0 where there is no payload
};

}  // namespace rose::kernels
