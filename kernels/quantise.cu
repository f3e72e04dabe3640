#include "quantise.h"

#include "block_scan.h"

namespace rose::kernels {
namespace {

constexpr u32 kWeightsOfLoad = 8;  // weights that a thread loads at once: 128 bits

// Eight weights, two per word.
struct alignas(16) EightWeights {
  u32 pairs[kWeightsOfLoad / 2];

  ROSE_DEVICE u32 at(u32 i) const { return pairs[i / 2] >> (16 * (i % 2)) & 0xFFFF; }
};

// A scale block: its start, and its size within the matrix.
struct ScaleBlock {
  const u16* bits;
  u8* codes;
  u64 height;
  u64 width;
};

ROSE_DEVICE u64 blocks_along(u64 count, u64 by) { return count / by + (count % by != 0 ? 1 : 0); }

ROSE_DEVICE ScaleBlock scale_block(const QuantiseParams& params, u64 scale, u64 across) {
  const u64 row = scale / across * params.block_rows;
  const u64 col = scale % across * params.block_cols;
  const u64 below = params.rows - row;
  const u64 right = params.cols - col;
  return {params.bits + row * params.row_stride + col, params.codes + row * params.cols + col,
          below < params.block_rows ? below : params.block_rows,
          right < params.block_cols ? right : params.block_cols};
}

// Thread `lane` of kGroup calls visit(row, column) for its loads of a block, which are every
// kGroup-th load, row by row. Only the first position needs a division.
template <u32 kGroup, typename Visit>
ROSE_DEVICE void for_each_load(const ScaleBlock& block, u32 lane, Visit visit) {
  const u64 loads = blocks_along(block.width, kWeightsOfLoad);  // per row
  const u64 rows_on = kGroup / loads;
  const u64 loads_on = kGroup % loads;
  u64 row = lane / loads;
  u64 load = lane % loads;
  while (row < block.height) {
    visit(row, load * kWeightsOfLoad);
    row += rows_on;
    load += loads_on;
    if (load >= loads) {
      load -= loads;
      ++row;
    }
  }
}

template <typename T>
ROSE_DEVICE bool is_aligned_for(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % alignof(T) == 0;
}

// Loads weights `at` to `at` + 7 of a row of `width` weights; behind the end they are 0.
ROSE_DEVICE EightWeights load_weights(const u16* row, u64 at, u64 width) {
  if (is_aligned_for<EightWeights>(row + at) && at + kWeightsOfLoad <= width) {
    return *reinterpret_cast<const EightWeights*>(row + at);
  }
  EightWeights weights{};
#pragma unroll
  for (u32 i = 0; i < kWeightsOfLoad; ++i) {
    if (at + i < width) weights.pairs[i / 2] |= static_cast<u32>(row[at + i]) << (16 * (i % 2));
  }
  return weights;
}

ROSE_DEVICE u32 largest_of(const EightWeights& weights) {
  u32 largest = 0;
#pragma unroll
  for (u32 i = 0; i < kWeightsOfLoad; ++i) {
    const u32 magnitude = finite_magnitude(weights.at(i));
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

// Writes codes `at` to `at` + 7 of a row, up to its end; the lowest byte of `codes` is the first.
ROSE_DEVICE void store_codes(u8* row, u64 at, u64 width, u64 codes) {
  if (is_aligned_for<u64>(row + at) && at + kWeightsOfLoad <= width) {
    *reinterpret_cast<u64*>(row + at) = codes;
    return;
  }
#pragma unroll
  for (u32 i = 0; i < kWeightsOfLoad; ++i) {
    if (at + i < width) row[at + i] = static_cast<u8>(codes >> (8 * i));
  }
}

template <u32 kGroup, CodeKind kKind>
ROSE_DEVICE void encode_block(const QuantiseParams& params, const ScaleBlock& block, float scale,
                              u32 lane) {
  for_each_load<kGroup>(block, lane, [&](u64 row, u64 at) {
    const EightWeights weights =
        load_weights(block.bits + row * params.row_stride, at, block.width);
    u64 codes = 0;
#pragma unroll
    for (u32 i = 0; i < kWeightsOfLoad; ++i) {
      codes |= static_cast<u64>(code_of<kKind>(weights.at(i), scale)) << (8 * i);
    }
    store_codes(block.codes + row * params.cols, at, block.width, codes);
  });
}

// Returns the maximum over the lanes of a warp, in all lanes.
struct LargestOfWarp {
  ROSE_DEVICE u32 operator()(u32 number) const { return __reduce_max_sync(kAllLanes, number); }
};

// Returns the maximum over a CTA. All threads call this.
struct LargestOfCta {
  u32* of_warps;  // shared

  ROSE_DEVICE u32 operator()(u32 number) const {
    const u32 of_warp = __reduce_max_sync(kAllLanes, number);
    __syncthreads();  // separates reading the previous block's result from writing
    if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = of_warp;
    __syncthreads();  // separates writing each warp's maximum from reading it
    u32 largest = 0;
#pragma unroll
    for (u32 i = 0; i < kQuantiseThreads / kWarp; ++i) {
      largest = of_warps[i] > largest ? of_warps[i] : largest;
    }
    return largest;
  }
};

// kGroup threads read each weight of a block twice, the second time from the cache.
template <u32 kGroup, typename Largest>
ROSE_DEVICE void quantise_blocks(const QuantiseParams& params, u64 group, u64 groups, u32 lane,
                                 const Largest& largest_of_group) {
  const u64 down = blocks_along(params.rows, params.block_rows);
  const u64 across = blocks_along(params.cols, params.block_cols);
  for (u64 at = group; at < down * across; at += groups) {
    const ScaleBlock block = scale_block(params, at, across);
    u32 largest = 0;
    for_each_load<kGroup>(block, lane, [&](u64 row, u64 col) {
      const EightWeights weights =
          load_weights(block.bits + row * params.row_stride, col, block.width);
      const u32 of_load = largest_of(weights);
      largest = of_load > largest ? of_load : largest;
    });
    const float scale = scale_of(largest_of_group(largest), params.kind);
    if (lane == 0) params.scales[at] = scale;
    if (params.kind == CodeKind::kFp8) {
      encode_block<kGroup, CodeKind::kFp8>(params, block, scale, lane);
    } else {
      encode_block<kGroup, CodeKind::kInt8>(params, block, scale, lane);
    }
  }
}

}  // namespace
}  // namespace rose::kernels

using rose::kernels::QuantiseParams;

// Works with any grid: each CTA takes every gridDim.x-th scale block.
extern "C" __global__ __launch_bounds__(rose::kernels::kQuantiseThreads) void quantise_cta_kernel(
    const QuantiseParams params) {
  using namespace rose::kernels;
  __shared__ u32 of_warps[kQuantiseThreads / kWarp];
  quantise_blocks<kQuantiseThreads>(params, blockIdx.x, gridDim.x, threadIdx.x,
                                    LargestOfCta{of_warps});
}

// Works with any grid: each warp takes scale blocks at a stride of all warps. For many small
// blocks.
extern "C" __global__ __launch_bounds__(rose::kernels::kQuantiseThreads) void quantise_warp_kernel(
    const QuantiseParams params) {
  using namespace rose::kernels;
  constexpr u64 kWarps = kQuantiseThreads / kWarp;
  const u64 warp = static_cast<u64>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  quantise_blocks<kWarp>(params, warp, gridDim.x * kWarps, threadIdx.x % kWarp, LargestOfWarp{});
}
