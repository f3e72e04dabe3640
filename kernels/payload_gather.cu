#include "payload_gather.h"

#include "gap_code.h"

// One warp copies the payload of one delta block.
extern "C" __global__ __launch_bounds__(rose::kernels::kGatherThreads) void payload_gather_kernel(
    const rose::kernels::PayloadGatherParams params) {
  using namespace rose::kernels;
  const u64 block = (static_cast<u64>(blockIdx.x) * kGatherThreads + threadIdx.x) / kWarp;
  if (block >= params.blocks) return;
  const u32 words = to_entry(params.entries[block]).words;
  const u32* from = params.arena + params.offsets[block];
  u32* to = params.payload + params.starts[block];
#pragma unroll 4
  for (u32 i = threadIdx.x % kWarp; i < words; i += kWarp) to[i] = from[i];
}
