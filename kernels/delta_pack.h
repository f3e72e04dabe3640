// delta_pack_kernel: the delta of an array against its shadow; updates the shadow to the sent
// values. delta_pack_16k_kernel: the same for blocks of 16,384 elements only.
// delta_pack_flat_16k_kernel and delta_pack_flat_64k_kernel: the same for most weights.
#pragma once

#include "box.h"

namespace rose::kernels {

// Largest age of an unsent change.
constexpr u32 kAgeMax = 255;

// One CTA of block_elements / kElementsOfThread threads per delta block.
//
// Blocks reserve their payloads in the arena in any order; gathered by `offsets` in the order of
// the table they are the delta. `cursor` ends at the words that all blocks together need. A block
// without room becomes kDeferred: it reserves, but writes no payload and keeps its shadow and ages.
// So with kDeferred read as EMPTY the result is always a complete delta of the shadow's changes.
// Another pack with a new arena and the same threshold yields the rest, but ages the elements of
// the other blocks once more. Without an arena the kernel only measures.
struct DeltaPackParams {
  Box bits;
  Box shadow;  // a null base: a delta from zeros, and no shadow is updated
  u64 width;
  u64 count;
  u64 block_elements;
  const u32* threshold;  // smallest sent key, on the device; null or 0 sends every change
  u8* ages;              // one per element, from bits' first on; or null
  u64 age_limit;         // age from which a change is sent whatever its key
  u32* arena;
  u64 arena_words;
  u64* cursor;  // 0 at first
  u64* entries;
  u64* offsets;            // in words; 0 where there is no payload
  u64* digest;             // two sums, to which the digest of the updated shadow is added; or null
  const u64* base_digest;  // that of the shadow before, for the flat kernels only; or null
  u64 first_index;         // index of the first element in its tensor, a multiple of 8 bytes
  u64 seed;
};

// True if the flat kernel of this block_elements can pack: both arrays are flat, with 16-bit
// elements in whole blocks, every change is sent, and the digest follows from the shadow's by its
// changed words.
inline bool is_flat(const DeltaPackParams& params) {
  return params.width == 16 && params.bits.base != nullptr && params.shadow.base != nullptr &&
         params.block_elements != 0 && params.count % params.block_elements == 0 &&
         is_flat(params.bits, params.count) && is_flat(params.shadow, params.count) &&
         params.threshold == nullptr && params.ages == nullptr &&
         (params.digest == nullptr || params.base_digest != nullptr);
}

}  // namespace rose::kernels
