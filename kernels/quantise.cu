#include "quantise.h"

#include "block_scan.h"
#include "eight.h"

namespace rose::kernels {
namespace {

// A scale block: where it starts, and how much of it is inside the matrix.
struct Box {
  const u16* bits;
  u8* codes;
  u64 height;
  u64 width;
};

ROSE_DEVICE u64 blocks_along(u64 count, u64 by) { return count / by + (count % by != 0 ? 1 : 0); }

ROSE_DEVICE Box box_of(const QuantiseParams& params, u64 scale, u64 across) {
  const u64 row = scale / across * params.block_rows;
  const u64 col = scale % across * params.block_cols;
  const u64 below = params.rows - row;
  const u64 right = params.cols - col;
  return {params.bits + row * params.row_stride + col, params.codes + row * params.cols + col,
          below < params.block_rows ? below : params.block_rows,
          right < params.block_cols ? right : params.block_cols};
}

// Thread `lane` of kGroup calls visit(row, column) for its groups of eight weights of a box: every
// kGroup-th one, along the rows first. Only the first place is found by dividing.
template <u32 kGroup, typename Visit>
ROSE_DEVICE void for_each_eight(const Box& box, u32 lane, Visit visit) {
  const u64 eights = blocks_along(box.width, kEight);  // of a row
  const u64 rows_on = kGroup / eights;
  const u64 eights_on = kGroup % eights;
  u64 row = lane / eights;
  u64 eight = lane % eights;
  while (row < box.height) {
    visit(row, eight * kEight);
    row += rows_on;
    eight += eights_on;
    if (eight >= eights) {
      eight -= eights;
      ++row;
    }
  }
}

ROSE_DEVICE Eight load_of_row(const u16* row, u64 at, u64 width) {
  return load_eight(row, at, width, is_aligned_16(row + at));
}

ROSE_DEVICE u32 largest_of(const Eight& eight) {
  u32 largest = 0;
#pragma unroll
  for (u32 i = 0; i < kEight; ++i) {
    const u32 magnitude = finite_magnitude(eight.at(i));
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

// Writes codes `at` to `at` + 7 of a row, as far as there are so many.
ROSE_DEVICE void store_codes(u8* row, u64 at, u64 width, const u64 codes) {
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(row + at) % alignof(u64) == 0;
  if (is_aligned && at + kEight <= width) {
    *reinterpret_cast<u64*>(row + at) = codes;
    return;
  }
#pragma unroll
  for (u32 i = 0; i < kEight; ++i) {
    if (at + i < width) row[at + i] = static_cast<u8>(codes >> (8 * i));
  }
}

template <u32 kGroup, CodeKind kKind>
ROSE_DEVICE void encode_box(const QuantiseParams& params, const Box& box, float scale, u32 lane) {
  for_each_eight<kGroup>(box, lane, [&](u64 row, u64 at) {
    const Eight eight = load_of_row(box.bits + row * params.row_stride, at, box.width);
    u64 codes = 0;
#pragma unroll
    for (u32 i = 0; i < kEight; ++i) {
      codes |= static_cast<u64>(code_of<kKind>(eight.at(i), scale)) << (8 * i);
    }
    store_codes(box.codes + row * params.cols, at, box.width, codes);
  });
}

// The largest number of a group of threads, for all of them. The lanes of a warp.
struct LargestOfWarp {
  ROSE_DEVICE u32 operator()(u32 number) const { return __reduce_max_sync(kAllLanes, number); }
};

// All threads of the CTA call it.
struct LargestOfCta {
  u32* of_warps;  // shared

  ROSE_DEVICE u32 operator()(u32 number) const {
    const u32 of_warp = __reduce_max_sync(kAllLanes, number);
    __syncthreads();  // all have read the answer of the block before
    if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = of_warp;
    __syncthreads();  // every warp has written its own
    u32 largest = 0;
#pragma unroll
    for (u32 i = 0; i < kQuantiseThreads / kWarp; ++i) {
      largest = of_warps[i] > largest ? of_warps[i] : largest;
    }
    return largest;
  }
};

// kGroup threads look at each weight of a block twice, the second time in the cache.
template <u32 kGroup, typename Largest>
ROSE_DEVICE void quantise_blocks(const QuantiseParams& params, u64 group, u64 groups, u32 lane,
                                 const Largest& largest_of_group) {
  const u64 down = blocks_along(params.rows, params.block_rows);
  const u64 across = blocks_along(params.cols, params.block_cols);
  for (u64 at = group; at < down * across; at += groups) {
    const Box box = box_of(params, at, across);
    u32 largest = 0;
    for_each_eight<kGroup>(box, lane, [&](u64 row, u64 col) {
      const Eight eight = load_of_row(box.bits + row * params.row_stride, col, box.width);
      const u32 of_eight = largest_of(eight);
      largest = of_eight > largest ? of_eight : largest;
    });
    const float scale = scale_of(largest_of_group(largest), params.kind);
    if (lane == 0) params.scales[at] = scale;
    if (params.kind == CodeKind::kFp8) {
      encode_box<kGroup, CodeKind::kFp8>(params, box, scale, lane);
    } else {
      encode_box<kGroup, CodeKind::kInt8>(params, box, scale, lane);
    }
  }
}

}  // namespace
}  // namespace rose::kernels

using rose::kernels::QuantiseParams;

// Any grid. Each CTA takes every grid-th scale block.
extern "C" __global__ __launch_bounds__(rose::kernels::kQuantiseThreads) void quantise_cta_kernel(
    const QuantiseParams params) {
  using namespace rose::kernels;
  __shared__ u32 of_warps[kQuantiseThreads / kWarp];
  quantise_blocks<kQuantiseThreads>(params, blockIdx.x, gridDim.x, threadIdx.x,
                                    LargestOfCta{of_warps});
}

// Any grid. Each warp takes every so-many-th scale block, of which there are many small ones.
extern "C" __global__ __launch_bounds__(rose::kernels::kQuantiseThreads) void quantise_warp_kernel(
    const QuantiseParams params) {
  using namespace rose::kernels;
  constexpr u64 kWarps = kQuantiseThreads / kWarp;
  const u64 warp = static_cast<u64>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  quantise_blocks<kWarp>(params, warp, gridDim.x * kWarps, threadIdx.x % kWarp, LargestOfWarp{});
}
