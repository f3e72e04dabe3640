#include "topk_pack.h"

#include "block_scan.h"
#include "eight.h"

namespace rose::kernels {
namespace {

// A CTA's own counts. Not all keys fit into shared memory, but the changes of one training step lie
// within few binades. The first key that uses a slot owns it; a key 32 binades away, which maps to
// the same slot, is counted in the histogram directly.
constexpr u32 kSlots = 4096;
constexpr u32 kDue = kKeys;
constexpr u32 kUnclaimed = kKeys + 1;

struct HistogramShared {
  u32 key[kSlots];
  u32 changes[kSlots];
};

ROSE_DEVICE void count_key(HistogramShared& shared, u64* histogram, u32 key) {
  const u32 slot = key % kSlots;
  u32 owner = load_relaxed(&shared.key[slot]);  // a claimed slot stays claimed, and most are
  if (owner == kUnclaimed) owner = atomicCAS(&shared.key[slot], kUnclaimed, key);
  if (owner == kUnclaimed || owner == key) {
    atomicAdd(&shared.changes[slot], 1U);
  } else {
    atomic_add(&histogram[key], 1);
  }
}

constexpr u32 kKeysOfThread = kKeys / kThresholdThreads;
static_assert(kKeysOfThread * kThresholdThreads == kKeys);

struct ThresholdShared {
  ScanShared scan;
  u32 threshold;
};

}  // namespace
}  // namespace rose::kernels

using rose::kernels::HistogramShared;
using rose::kernels::ThresholdShared;
using rose::kernels::TopkHistogramParams;
using rose::kernels::TopkThresholdParams;

// Each thread takes groups of eight elements with the stride of the grid. A CTA counts in shared
// memory, where most changes have one of few keys, and adds to the histogram once at its end.
extern "C" __global__ __launch_bounds__(
    rose::kernels::kHistogramThreads) void topk_histogram_kernel(const TopkHistogramParams params) {
  using namespace rose::kernels;
  __shared__ HistogramShared shared;
  for (u32 i = threadIdx.x; i < kSlots; i += kHistogramThreads) {
    shared.key[i] = kUnclaimed;
    shared.changes[i] = 0;
  }
  __syncthreads();  // separates clearing the slots from counting

  const u64 stride = static_cast<u64>(gridDim.x) * kHistogramThreads * kEight;
  const u64 first = (static_cast<u64>(blockIdx.x) * kHistogramThreads + threadIdx.x) * kEight;
  for (u64 at = first; at < params.count; at += stride) {
    const Eight<u16> now = load_eight<u16>(params.bits, at, params.count);
    const Eight<u16> old = load_eight<u16>(params.shadow, at, params.count);
#pragma unroll
    for (u32 i = 0; i < kEight; ++i) {
      const u16 to = now.at(i);
      const u16 from = old.at(i);
      if (to == from) continue;
      const bool is_due = params.ages != nullptr && params.ages[at + i] >= params.age_limit;
      count_key(shared, params.histogram, is_due ? kDue : change_key(to, from));
    }
  }
  __syncthreads();  // separates counting from adding up the slots
  for (u32 i = threadIdx.x; i < kSlots; i += kHistogramThreads) {
    if (shared.changes[i] != 0) atomic_add(&params.histogram[shared.key[i]], shared.changes[i]);
  }
}

// One CTA. Each thread adds up its own range of keys. A scan gives the sum above the range; from
// there the thread goes down until the budget is used up.
extern "C" __global__ __launch_bounds__(
    rose::kernels::kThresholdThreads) void topk_threshold_kernel(const TopkThresholdParams params) {
  using namespace rose::kernels;
  __shared__ ThresholdShared shared;
  // Thread 0 has the largest keys, so the sum over lower threads is that of larger keys.
  const u32 end = kKeys - threadIdx.x * kKeysOfThread;
  u64 changes = 0;
  for (u32 i = 1; i <= kKeysOfThread; ++i) changes += params.histogram[end - i];
  if (threadIdx.x == 0) shared.threshold = kKeys;
  // Due changes are always sent. The barriers of scan() make the threshold visible to all.
  u64 reached = scan(changes, shared.scan).before + params.histogram[kDue];
  u32 threshold = kKeys;
  for (u32 i = 1; i <= kKeysOfThread && end - i >= 1; ++i) {
    reached += params.histogram[end - i];
    if (reached > params.budget) break;
    threshold = end - i;
  }
  atomicMin(&shared.threshold, threshold);
  __syncthreads();  // separates each thread's update from reading the result
  if (threadIdx.x == 0) *params.threshold = shared.threshold;
}
