// delta_pack_kernel: packs the delta of an array against its shadow, and updates the shadow to the
// sent values. delta_pack_16k_kernel: the same for blocks of 16,384 elements only.
// delta_pack_flat_16k_kernel and delta_pack_flat_64k_kernel: the same for many flat arrays at
// once.
#pragma once

#include "box.h"

namespace rose::kernels {

// Largest age of an unsent change.
constexpr u32 kAgeMax = 255;

// One CTA of block_elements / kElementsOfThread threads per delta block.
//
// A call packs one or more arrays, with launches that follow each other on one stream. The blocks
// of all arrays are numbered consecutively, and both tables have a row per block in this order.
// CTAs take the blocks in this order (block_order.h), not in the order of CTA numbers.
//
// Payloads lie in the arena in the order of the table. The last offset is the number of words that
// all blocks need. If the arena has no room for a block, this block and all later blocks with
// changes become kDeferred: their words are reserved, but no payload is written, and their shadows
// and ages do not change. With EMPTY in place of kDeferred, the result is always the complete
// delta from the old to the new shadow. Another pack with a new arena and the same threshold packs
// the deferred blocks, but ages the elements of the other blocks once more. With an arena of 0
// words the kernel only measures.
struct DeltaPackParams {
  Box bits;
  Box shadow;  // a null base: a delta from zeros, and no shadow is updated
  u64 width;
  u64 count;
  u64 block_elements;
  const u32* threshold;  // smallest sent key, on the device; null or 0 sends every change
  u8* ages;              // one per element of `bits`; or null
  u64 age_limit;         // a change of at least this age is sent, whatever its key
  u32* arena;
  u64 arena_words;
  u64* newest;      // number of the block that a CTA took last; ~0 at first
  u64 first_block;  // number of the array's first block in the call
  u64* entries;     // from the array's first block on
  u64* offsets;     // starts of the payloads, and end of the last, in words; ~0 at first
  u64* digest;      // two sums, to which the change of the shadow's digest is added; or null
  u64 first_index;  // index of the array's first element in its tensor, at a multiple of 8 bytes
  u64 seed;         // of the digest
};

// True if a flat kernel can pack the array: it has 16-bit elements, a shadow and no ages; array and
// shadow begin at multiples of 16 bytes and have no gaps.
inline bool is_flat(const DeltaPackParams& params) {
  return params.width == 16 && params.bits.base != nullptr && params.shadow.base != nullptr &&
         is_flat(params.bits, params.count) && is_flat(params.shadow, params.count) &&
         params.ages == nullptr;
}

// One array of a launch of a flat kernel; see DeltaPackParams.
struct FlatArray {
  const u16* bits;
  u16* shadow;
  u64 count;
  u64 first_cta;  // number of the array's first CTA in the grid; ascending over the arrays
  u64* entries;
  u64* offsets;
  u64* digest;
  u64 first_index;
};

// As many arrays as fit into 4,096 bytes, the most that every driver accepts as arguments.
constexpr u32 kFlatArraysMax = 63;

// The grid is as for DeltaPackParams. Array 0 begins at CTA 0, and no array is empty.
struct DeltaPackFlatParams {
  u64 arrays;
  const u32* threshold;
  u32* arena;
  u64 arena_words;
  u64* newest;
  u64 first_block;  // number of the launch's first block in the call
  u64 seed;
  FlatArray at[kFlatArraysMax];
};
static_assert(sizeof(DeltaPackFlatParams) <= 4096);

}  // namespace rose::kernels
