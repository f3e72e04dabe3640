// Chooses how a block lists the sizes of its changes, so that the block has the fewest words. The
// choice has two parts: whether the block lists all changes or only those with a size other than 1,
// and the number of bits per magnitude.
// docs/protocol.md, "Deltas".
#pragma once

#include "block_scan.h"
#include "gap_code.h"

namespace rose::kernels {

// A size is at most 2^31, so a magnitude has 0 to 31 bits: one bin per lane of a warp. Each bin has
// several copies, because most magnitudes fall into few bins, where atomics would contend.
constexpr u32 kLengths = kWarp;
constexpr u32 kCopies = 8;

// Number of magnitudes by their length in bits.
struct LengthCounts {
  u32 few[kLengths][kCopies];    // magnitudes size - 2, of the changes with a size other than 1
  u32 every[kLengths][kCopies];  // magnitudes size - 1, of the same changes
};

// All threads of the CTA call this. A barrier must follow.
ROSE_DEVICE void clear(LengthCounts& counts) {
#pragma unroll 1
  for (u32 i = threadIdx.x; i < kLengths * kCopies; i += blockDim.x) {
    counts.few[i / kCopies][i % kCopies] = 0;
    counts.every[i / kCopies][i % kCopies] = 0;
  }
}

// `size` is at least 2.
ROSE_DEVICE void count_size(LengthCounts& counts, u32 size) {
  const u32 copy = threadIdx.x % kCopies;
  atomicAdd(&counts.few[bit_length(size - 2)][copy], 1U);
  atomicAdd(&counts.every[bit_length(size - 1)][copy], 1U);
}

// The cheapest listing: words of magnitudes, large ranks and large magnitudes; bits per magnitude;
// number of large magnitudes.
struct Cheapest {
  u32 words;
  u32 magnitude_bits;
  u32 large;
};

// One warp calls this. Lane n tries n bits per magnitude; lane 0 has the result. `steps` further
// magnitudes, which `lengths` does not include, are 0.
ROSE_DEVICE Cheapest cheapest(const u32 (&lengths)[kLengths][kCopies], u32 count, u32 steps,
                              u32 width) {
  const u32 lane = threadIdx.x % kWarp;
  u32 small = lane == 0 ? steps : 0;
#pragma unroll
  for (u32 i = 0; i < kCopies; ++i) small += lengths[lane][i];
#pragma unroll
  for (u32 step = 1; step < kWarp; step *= 2) {
    const u32 other = __shfl_up_sync(kAllLanes, small, step);
    if (lane >= step) small += other;
  }
  const u32 large = count - small;
  u32 words = words_of(count * lane);
  if (large != 0) words += elias_fano_words(count, large) + words_of(width * large);
  if (lane >= width) words = ~0U;
  // The fewest words win, and among equals the fewest bits. At most 65,536 magnitudes are large.
  u64 least = static_cast<u64>(words) << 32 | lane << 20 | large;
#pragma unroll
  for (u32 step = kWarp / 2; step > 0; step /= 2) {
    const u64 other = __shfl_down_sync(kAllLanes, least, step);
    if (other < least) least = other;
  }
  return {static_cast<u32>(least >> 32), static_cast<u32>(least >> 20 & 0x1F),
          static_cast<u32>(least & 0xFFFFF)};
}

struct BlockPlan {
  Entry entry;
  ChangeLayout layout;  // set only for a GAP or BITMAP block
};

// Returns the encoding of a block with `changed` > 0 changes, of which `far` have a size other
// than 1.
ROSE_DEVICE BlockPlan plan_of(u32 elements, u32 width, u32 changed, u32 far, const Cheapest& few,
                              const Cheapest& every) {
  u32 few_words = 0;
  if (far != 0) few_words = 1 + few.words + elias_fano_words(changed, far);
  const bool are_all = far == changed || 1 + every.words < few_words;
  const Cheapest& chosen = are_all ? every : few;
  const u32 listed = are_all ? changed : far;
  const u32 list_words = are_all ? 1 + every.words : few_words;
  const u32 raw = raw_words(elements, width);
  const u32 gap = elias_fano_words(elements, changed);
  const u32 bitmap = words_of(elements);
  if (raw <= (gap < bitmap ? gap : bitmap) + words_of(changed) + list_words) {
    return {{kRaw, changed, 0, raw}, {}};
  }
  const bool is_bitmap = bitmap < gap;
  const ChangeCounts counts{elements, changed, listed, chosen.large, chosen.magnitude_bits,
                            are_all};
  const ChangeLayout layout = change_layout(0, counts, width, is_bitmap);
  return {{is_bitmap ? kBitmap : kGap, changed, listed, layout.end / 32}, layout};
}

}  // namespace rose::kernels
