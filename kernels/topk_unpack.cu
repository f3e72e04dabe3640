#include "topk_unpack.h"

#include "gap_decode.h"

namespace rose::kernels {
namespace {

// Where one block reads and writes.
struct UnpackBlock {
  const u16* base;
  u64 first;  // the block's first element
  std::int64_t* positions;
  u16* values;

  ROSE_DEVICE void put(u32 i, u32 position, Change change) const {
    positions[i] = static_cast<std::int64_t>(first + position);
    values[i] = changed_bits(base[position], change, false);
  }
};

// Lists the block if its words say as many changes as its entry. False: corrupt. A warp takes 32
// elements, a lane one.
template <u32 kBlock>
ROSE_DEVICE bool unpack_raw(const u16* payload, const UnpackBlock& block, u32 elements, u32 changed,
                            DecodeShared<kBlock>& shared) {
  const u32 lane = threadIdx.x % kWarp;
  u32* is_changed = shared.is_exception;  // a RAW block has no exceptions
  for (u32 i = threadIdx.x; i < 32 * words_of(elements); i += kThreadsOf<kBlock>) {
    const u32 mask = __ballot_sync(kAllLanes, i < elements && payload[i] != 0);
    if (lane == 0) is_changed[i / 32] = mask;
  }
  __syncthreads();  // the mask is whole, it can be counted
  const u32 found = count_ones(is_changed, words_of(elements), shared.exceptions_before, shared);
  if (found != changed) return false;  // the same for all threads
  for (u32 i = threadIdx.x; i < elements; i += kThreadsOf<kBlock>) {
    const u32 mask = is_changed[i / 32];
    if ((mask >> lane & 1) == 0) continue;
    const u32 below = static_cast<u32>(__popc(mask & ((1U << lane) - 1)));
    block.put(shared.exceptions_before[i / 32] + below, i, Change{true, payload[i]});
  }
  return true;
}

// One CTA lists one delta block; see delta_apply.cu.
template <u32 kBlock>
ROSE_DEVICE void unpack(const TopkUnpackParams& params, DecodeShared<kBlock>& shared) {
  const u64 first = static_cast<u64>(blockIdx.x) * kBlock;
  const u32 elements =
      static_cast<u32>(params.count - first < kBlock ? params.count - first : kBlock);
  const Entry entry = to_entry(params.entries[blockIdx.x]);
  const u64 offset = params.offsets[blockIdx.x];
  const u64 output = params.first_outputs[blockIdx.x];
  bool is_good = is_valid(entry, elements, offset, params.payload_words) &&
                 output <= params.output_count && entry.changed <= params.output_count - output;
  if (is_good && entry.kind == kEmpty) return;
  if (is_good) {
    const u32* payload = params.payload + offset;
    const UnpackBlock block{params.base + first, first, params.positions + output,
                            params.values + output};
    if (entry.kind == kRaw) {
      const u16* differences = reinterpret_cast<const u16*>(payload);
      is_good = is_tail_clear(payload, 16 * elements) &&
                unpack_raw(differences, block, elements, entry.changed, shared);
    } else {
      const GapLayout layout = gap_layout(elements, entry.changed, entry.exceptions);
      is_good = prepare_gap(payload, layout, shared);
      if (is_good) {
        for_each_change(payload, layout, shared, [&](u32 i, u32 position, Change change) {
          block.put(i, position, change);
        });
      }
    }
  }
  if (!is_good && threadIdx.x == 0) atomic_min(params.bad_block, blockIdx.x);
}

}  // namespace
}  // namespace rose::kernels

using rose::kernels::DecodeShared;
using rose::kernels::kCtasOf;
using rose::kernels::kThreadsOf;
using rose::kernels::TopkUnpackParams;

// unpack() above, for delta blocks of 16,384 elements.
extern "C" __global__ __launch_bounds__(
    kThreadsOf<16384>, kCtasOf<16384>) void topk_unpack_16ki_kernel(const TopkUnpackParams params) {
  __shared__ DecodeShared<16384> shared;
  rose::kernels::unpack<16384>(params, shared);
}

// unpack() above, for delta blocks of 65,536 elements.
extern "C" __global__ __launch_bounds__(
    kThreadsOf<65536>, kCtasOf<65536>) void topk_unpack_64ki_kernel(const TopkUnpackParams params) {
  __shared__ DecodeShared<65536> shared;
  rose::kernels::unpack<65536>(params, shared);
}
