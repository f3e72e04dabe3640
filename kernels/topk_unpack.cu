#include "topk_unpack.h"

#include <type_traits>

#include "change_read.h"

namespace rose::kernels {
namespace {

// Number of CTAs of the largest size whose registers must fit into one multiprocessor. Four CTAs
// have half of the multiprocessor's threads.
constexpr u32 kUnpackCtas = 4;

// One CTA lists one delta block; see delta_apply.cu.
ROSE_DEVICE void unpack(const TopkUnpackParams& params, DecodeShared& shared) {
  const u64 bits = params.entries[blockIdx.x];
  if (bits == 0) return;
  const u64 first = blockIdx.x * params.block_elements;
  const u64 rest = params.count - first;
  const u32 elements =
      static_cast<u32>(rest < params.block_elements ? rest : params.block_elements);
  const u32 width = static_cast<u32>(params.width);
  const Entry entry = to_entry(bits);
  const u64 output = params.first_outputs[blockIdx.x];
  bool is_good = output <= params.output_count && entry.changed <= params.output_count - output;
  is_good = is_good &&
            read_block(entry, elements, width, params.offsets[blockIdx.x], params.payload,
                       params.payload_words, shared, [&](const auto& tile) {
                         constexpr u32 kCount = std::remove_cvref_t<decltype(tile)>::kCount;
                         u32 old[kCount];
#pragma unroll
                         for (u32 k = 0; k < kCount; ++k) {
                           if (!tile.has(k)) continue;
                           const u64 place = place_of(params.base, first + tile.position(k)).offset;
                           old[k] = load_bits(params.base.base, place, width);
                         }
#pragma unroll
                         for (u32 k = 0; k < kCount; ++k) {
                           if (!tile.has(k)) continue;
                           const u64 at = output + tile.rank(k);
                           params.positions[at] =
                               static_cast<std::int64_t>(first + tile.position(k));
                           store_bits(params.values, at, width, old[k] + tile.difference(k));
                         }
                       });
  if (!is_good && threadIdx.x == 0) atomic_min(params.bad_block, blockIdx.x);
}

}  // namespace
}  // namespace rose::kernels

// See unpack() above.
extern "C" __global__ __launch_bounds__(
    rose::kernels::kReadThreadsMax,
    rose::kernels::kUnpackCtas) void topk_unpack_kernel(const rose::kernels::TopkUnpackParams
                                                            params) {
  __shared__ rose::kernels::DecodeShared shared;
  rose::kernels::unpack(params, shared);
}
