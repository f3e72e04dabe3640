// delta_pack_kernel: the delta of an array against its shadow, and the shadow moved to what was
// sent.
#pragma once

#include "box.h"

namespace rose::kernels {

// How old an element's unsent change can get.
constexpr u32 kAgeMax = 255;

// One CTA of block_elements / kElementsOfThread threads for each delta block.
//
// Blocks reserve their payloads in the arena in any order; the delta is what is gathered by
// `offsets` in the order of the table. `cursor` ends at the words that all blocks together need. A
// block that finds no room is kDeferred: it reserves, but writes no payload and leaves its shadow
// and its ages. So this is always a whole delta of what the shadow became, read with kDeferred as
// EMPTY, and another pack, with a fresh arena and the same threshold, is the delta of the rest (but
// it would age the elements of the other blocks once more). Without an arena it only measures.
struct DeltaPackParams {
  Box bits;
  Box shadow;  // a null base: the delta is that from zeros, and nothing moves
  u64 width;
  u64 count;
  u64 block_elements;
  const u32* threshold;  // the least key that is sent, on the device; null or 0: every change is
  u8* ages;              // of each element, from bits' first on; or null
  u64 age_limit;         // a change whose age has reached it is sent whatever its key
  u32* arena;
  u64 arena_words;
  u64* cursor;  // 0 before
  u64* entries;
  u64* offsets;     // in words; 0 where there is no payload
  u64* digest;      // two sums, to which the shadow's digest after packing is added; or null
  u64 first_index;  // of the first element in its tensor, at a border of 8 bytes
  u64 seed;
};

}  // namespace rose::kernels
