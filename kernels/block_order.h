// The order of the blocks of a call. CTAs take the blocks in this order, and the arena holds their
// payloads in this order.
//
// The start of a payload depends on the words of all blocks before it. The kernel finds it without
// another launch, by decoupled look-back (Merrill and Garland, "Single-pass Parallel Prefix Scan
// with Decoupled Look-back", 2016).
#pragma once

#include "block_scan.h"

namespace rose::kernels {

// Returns the number of the next block of the call. CTAs already run for all earlier blocks, so the
// CTA of this block may wait for their word counts. `newest` is the last number taken, ~0 at first.
ROSE_DEVICE u64 take_block(u64* newest) { return atomic_add(newest, 1) + 1; }

// The row of the offset table that will hold the end of a block's payload takes three values in
// turn: kNothing; kWordsOnly plus the number of words of the payload; the end.
constexpr u64 kNothing = ~u64{0};
constexpr u64 kWordsOnly = u64{1} << 63;

// Reserves the payload of block `number`. Lane 0 must pass the payload's number of words, and only
// lane 0 receives the payload's start. `offset` points to the row of the offset table for this
// start, and offset[1] is the row for the end. Waits until the word counts of all earlier blocks
// are known. All lanes of one warp call this.
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
        known = load_relaxed(offset - back);  // the end of block `number` - 1 - `back`
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
