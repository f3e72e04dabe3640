// The order of the blocks of a call: CTAs take the blocks, and payloads lie, in this order.
//
// The start of a payload depends on the words of all blocks before it. The kernel finds it without
// another launch, by decoupled look-back (Merrill and Garland, "Single-pass Parallel Prefix Scan
// with Decoupled Look-back", 2016).
#pragma once

#include "block_scan.h"

namespace rose::kernels {

// Returns the number of the next block of the call. Every block before it has a CTA that runs, so
// its CTA may wait for their words. `newest` is the last number taken, ~0 at first.
ROSE_DEVICE u64 take_block(u64* newest) { return atomic_add(newest, 1) + 1; }

// What is known of the end of a block's payload: at first nothing, then the words of its payload,
// with kWordsOnly, and finally the end.
constexpr u64 kNothing = ~u64{0};
constexpr u64 kWordsOnly = u64{1} << 63;

// Reserves the payload of block `number`, whose words lane 0 has, and returns to lane 0 where it
// begins. `offset` is the block's in the table of offsets; the next one is the end. Waits for the
// blocks before. All lanes of one warp call it.
ROSE_DEVICE u64 reserve(u64* offset, u64 number, u32 words) {
  const u32 lane = threadIdx.x % kWarp;
  if (lane == 0) store_relaxed(&offset[1], kWordsOnly | words);
  u64 sum = 0;
  u32 ends = 0;  // lanes that know the end of a payload
#pragma unroll 1
  for (u64 back = lane; ends == 0; back += kWarp) {
    u64 known = 0;  // before block 0 there is nothing
    if (back < number) {
      do {
        known = load_relaxed(offset - back);  // of block `number` - 1 - `back`
      } while (known == kNothing);
    }
    ends = __ballot_sync(kAllLanes, (known & kWordsOnly) == 0);
    const u32 added = ends ^ (ends - 1);  // the lanes up to the first one that knows an end
    if ((added >> lane & 1) != 0) sum += known & ~kWordsOnly;
  }
  sum = sum_of_warp(sum);
  if (lane == 0) {
    if (number == 0) *offset = 0;
    store_relaxed(&offset[1], sum + words);
  }
  return sum;
}

}  // namespace rose::kernels
