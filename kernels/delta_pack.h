// delta_pack_16ki_kernel, delta_pack_64ki_kernel: the delta of an array against its shadow, and the
// shadow moved to what was sent.
#pragma once

#include "device.h"

namespace rose::kernels {

// One CTA of kThreadsOf<block elements> threads for each delta block.
//
// Blocks reserve their payloads in the arena in any order; the delta is what is gathered by
// `offsets` in the order of the table. `cursor` ends at the words that all blocks together need. A
// block that finds no room is kDeferred: it reserves, but writes no payload and leaves its shadow.
// So this is always a whole delta of what the shadow became, read with kDeferred as EMPTY, and
// another pack, with a fresh arena and the same threshold, is the delta of the rest.
struct DeltaPackParams {
  const u16* bits;
  u16* shadow;
  u64 count;
  const u32* threshold;  // the least key that is sent, on the device; null or 0: every change is
  u32* arena;
  u64 arena_words;
  u64* cursor;  // 0 before
  u64* entries;
  u64* offsets;     // in words; 0 where there is no payload
  u64* digest;      // two sums, to which the shadow's digest after packing is added; or null
  u64 first_index;  // of bits[0] in its tensor, a multiple of four
  u64 seed;
};

}  // namespace rose::kernels
