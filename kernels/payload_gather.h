// payload_gather_kernel: the payloads of packed blocks, in the order of their table.
#pragma once

#include "box.h"

namespace rose::kernels {

constexpr u32 kGatherThreads = 256;

// One warp per delta block, in CTAs of kGatherThreads threads. No block is deferred.
struct PayloadGatherParams {
  const u64* entries;
  const u64* offsets;  // start of each block's payload in the arena, in words
  const u64* starts;   // and in the gathered payload
  u64 blocks;
  const u32* arena;
  u32* payload;
};

}  // namespace rose::kernels
