#include "delta_apply.h"

#include <type_traits>

#include "change_read.h"

namespace rose::kernels {
namespace {

// CTAs of the largest size per multiprocessor whose registers must fit: three quarters of its
// threads. For sm_80 ptxas would spill, so there it is half of them.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr u32 kApplyCtas = 6;
#else
constexpr u32 kApplyCtas = 4;
#endif

// Adds the differences of a tile: all loads, then all stores.
template <typename T, typename Tile>
ROSE_DEVICE void add(T* weights, const Tile& tile, const u64* places, bool is_undo) {
  constexpr u32 kCount = Tile::kCount;
  u32 old[kCount];
#pragma unroll
  for (u32 k = 0; k < kCount; ++k) old[k] = tile.has(k) ? weights[places[k]] : 0;
#pragma unroll
  for (u32 k = 0; k < kCount; ++k) {
    if (!tile.has(k)) continue;
    const u32 by = tile.difference(k);
    weights[places[k]] = static_cast<T>(is_undo ? old[k] - by : old[k] + by);
  }
}

// One CTA applies one delta block.
ROSE_DEVICE void apply(const DeltaApplyParams& params, DecodeShared& shared) {
  // Volatile, so that the second load does not wait for the first.
  const u64 bits = static_cast<const volatile u64*>(params.entries)[blockIdx.x];
  const u64 offset = static_cast<const volatile u64*>(params.offsets)[blockIdx.x];
  if (bits == 0) return;
  const u64 first = blockIdx.x * params.block_elements;
  const u64 rest = params.count - first;
  const u32 elements =
      static_cast<u32>(rest < params.block_elements ? rest : params.block_elements);
  const u32 width = static_cast<u32>(params.width);
  const bool is_good =
      read_block(to_entry(bits), elements, width, offset, params.payload, params.payload_words,
                 shared, [&](const auto& tile) {
                   constexpr u32 kCount = std::remove_cvref_t<decltype(tile)>::kCount;
                   u64 places[kCount];
#pragma unroll
                   for (u32 k = 0; k < kCount; ++k) {
                     const u64 at = blockIdx.x * params.block_elements + tile.position(k);
                     places[k] = tile.has(k) ? place_of(params.weights, at).offset : 0;
                   }
                   with_width(width, [&](auto zero) {
                     add(reinterpret_cast<decltype(zero)*>(params.weights.base), tile, places,
                         params.is_undo != 0);
                   });
                 });
  if (!is_good && threadIdx.x == 0) atomic_min(params.bad_block, blockIdx.x);
}

}  // namespace
}  // namespace rose::kernels

// See apply() above.
extern "C" __global__ __launch_bounds__(
    rose::kernels::kReadThreadsMax,
    rose::kernels::kApplyCtas) void delta_apply_kernel(const rose::kernels::DeltaApplyParams
                                                           params) {
  __shared__ rose::kernels::DecodeShared shared;
  rose::kernels::apply(params, shared);
}
