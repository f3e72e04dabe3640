// Sums over the threads of a CTA, and 64-bit atomics on global memory.
#pragma once

#include "digest_sum.h"

namespace rose::kernels {

constexpr u32 kAllLanes = 0xFFFFFFFF;

// CUDA's atomics take unsigned long long; here u64 is unsigned long, of the same size.
static_assert(sizeof(u64) == sizeof(unsigned long long));

ROSE_DEVICE u64 atomic_add(u64* sum, u64 number) {
  return atomicAdd(reinterpret_cast<unsigned long long*>(sum),
                   static_cast<unsigned long long>(number));
}

ROSE_DEVICE void atomic_min(u64* least, u64 number) {
  atomicMin(reinterpret_cast<unsigned long long*>(least), static_cast<unsigned long long>(number));
}

// For each warp of the largest CTA, the sum over the lower warps; then the sum over all warps.
struct ScanShared {
  u64 before[kWarp + 1];
};

struct Scanned {
  u64 before;       // sum over the lower threads
  u64 before_warp;  // sum over the lower warps
  u64 total;
};

// Sums `number` over the threads of the CTA. All threads call this, and the CTA consists of whole
// warps. A barrier must separate two calls, so that every thread has read the first results.
ROSE_DEVICE Scanned scan(u64 number, ScanShared& shared) {
  const u32 warps = blockDim.x / kWarp;
  const u32 lane = threadIdx.x % kWarp;
  const u32 warp = threadIdx.x / kWarp;
  u64 sum = number;
#pragma unroll
  for (u32 step = 1; step < kWarp; step *= 2) {
    const u64 other = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == kWarp - 1) shared.before[warp + 1] = sum;
  __syncthreads();  // separates the sums of the warps from the first thread's additions
  if (threadIdx.x == 0) {
    shared.before[0] = 0;
#pragma unroll 1
    for (u32 i = 1; i <= warps; ++i) shared.before[i] += shared.before[i - 1];
  }
  __syncthreads();  // separates the first thread's additions from their readers
  return {shared.before[warp] + sum - number, shared.before[warp], shared.before[warps]};
}

// Sums up the numbers of a warp; lane 0 has the result. All lanes call this.
ROSE_DEVICE u64 sum_of_warp(u64 number) {
#pragma unroll
  for (u32 step = kWarp / 2; step > 0; step /= 2) {
    number += __shfl_down_sync(kAllLanes, number, step);
  }
  return number;
}

// Adds the threads' digests to `sums`. All threads of the CTA call this.
ROSE_DEVICE void add_atomically(const DigestSum& of_thread, u64* sums) {
  const u64 first = sum_of_warp(of_thread.first);
  const u64 second = sum_of_warp(of_thread.second);
  if (threadIdx.x % kWarp == 0) {
    atomic_add(&sums[0], first);
    atomic_add(&sums[1], second);
  }
}

}  // namespace rose::kernels
