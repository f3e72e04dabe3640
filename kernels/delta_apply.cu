#include "delta_apply.h"

#include "change_read.h"

namespace rose::kernels {
namespace {

// One CTA applies one delta block. It decodes the block to check it and again to write it, with one
// thread per bit of the high section.
ROSE_DEVICE void apply(const DeltaApplyParams& params, DecodeShared& shared) {
  const u64 bits = params.entries[blockIdx.x];
  if (bits == 0) return;
  const u64 first = blockIdx.x * params.block_elements;
  const u64 rest = params.count - first;
  const u32 elements =
      static_cast<u32>(rest < params.block_elements ? rest : params.block_elements);
  const u32 width = static_cast<u32>(params.width);
  const bool is_undo = params.is_undo != 0;
  const bool is_good =
      read_block(to_entry(bits), elements, width, params.offsets[blockIdx.x], params.payload,
                 params.payload_words, shared, [&](u32, u32 position, u32 difference) {
                   const u64 place = place_of(params.weights, first + position).offset;
                   const u32 old = load_bits(params.weights.base, place, width);
                   store_bits(params.weights.base, place, width,
                              is_undo ? old - difference : old + difference);
                 });
  if (!is_good && threadIdx.x == 0) atomic_min(params.bad_block, blockIdx.x);
}

}  // namespace
}  // namespace rose::kernels

// See apply() above.
extern "C" __global__ __launch_bounds__(
    rose::kernels::kThreadsMax,
    rose::kernels::kCtas) void delta_apply_kernel(const rose::kernels::DeltaApplyParams params) {
  __shared__ rose::kernels::DecodeShared shared;
  rose::kernels::apply(params, shared);
}
