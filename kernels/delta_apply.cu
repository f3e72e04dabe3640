#include "delta_apply.h"

#include "gap_decode.h"

namespace rose::kernels {
namespace {

// Changes the block if its words say as many changes as its entry. False: corrupt.
template <u32 kBlock>
ROSE_DEVICE bool apply_raw(const u16* payload, u16* weights, u32 elements, u32 changed,
                           DecodeShared<kBlock>& shared) {
  u64 found = 0;
  for (u32 i = threadIdx.x; i < elements; i += kThreadsOf<kBlock>) found += payload[i] != 0;
  if (scan(found, shared.scan).total != changed) return false;  // the same for all threads
  for (u32 i = threadIdx.x; i < elements; i += kThreadsOf<kBlock>) {
    const u16 difference = payload[i];
    if (difference != 0) weights[i] = static_cast<u16>(weights[i] ^ difference);
  }
  return true;
}

// One CTA applies one delta block: it decodes once to check, and once to write, a thread for each
// bit of the high section.
template <u32 kBlock>
ROSE_DEVICE void apply(const DeltaApplyParams& params, DecodeShared<kBlock>& shared) {
  const u64 first = static_cast<u64>(blockIdx.x) * kBlock;
  const u32 elements =
      static_cast<u32>(params.count - first < kBlock ? params.count - first : kBlock);
  const Entry entry = to_entry(params.entries[blockIdx.x]);
  const u64 offset = params.offsets[blockIdx.x];
  bool is_good = is_valid(entry, elements, offset, params.payload_words);
  if (is_good && entry.kind == kEmpty) return;
  if (is_good) {
    const u32* payload = params.payload + offset;
    u16* weights = params.weights + first;
    if (entry.kind == kRaw) {
      const u16* differences = reinterpret_cast<const u16*>(payload);
      is_good = is_tail_clear(payload, 16 * elements) &&
                apply_raw(differences, weights, elements, entry.changed, shared);
    } else {
      const GapLayout layout = gap_layout(elements, entry.changed, entry.exceptions);
      const bool is_undo = params.is_undo != 0;
      is_good = prepare_gap(payload, layout, shared);
      if (is_good) {
        for_each_change(payload, layout, shared, [&](u32, u32 position, Change change) {
          weights[position] = changed_bits(weights[position], change, is_undo);
        });
      }
    }
  }
  if (!is_good && threadIdx.x == 0) atomic_min(params.bad_block, blockIdx.x);
}

}  // namespace
}  // namespace rose::kernels

using rose::kernels::DecodeShared;
using rose::kernels::DeltaApplyParams;
using rose::kernels::kCtasOf;
using rose::kernels::kThreadsOf;

// apply() above, for delta blocks of 16,384 elements.
extern "C" __global__ __launch_bounds__(
    kThreadsOf<16384>, kCtasOf<16384>) void delta_apply_16ki_kernel(const DeltaApplyParams params) {
  __shared__ DecodeShared<16384> shared;
  rose::kernels::apply<16384>(params, shared);
}

// apply() above, for delta blocks of 65,536 elements.
extern "C" __global__ __launch_bounds__(
    kThreadsOf<65536>, kCtasOf<65536>) void delta_apply_64ki_kernel(const DeltaApplyParams params) {
  __shared__ DecodeShared<65536> shared;
  rose::kernels::apply<65536>(params, shared);
}
