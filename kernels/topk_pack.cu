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
  // Most slots are claimed, and a claimed slot stays claimed, so the plain load mostly suffices.
  u32 owner = load_relaxed(&shared.key[slot]);
  if (owner == kUnclaimed) owner = atomicCAS(&shared.key[slot], kUnclaimed, key);
  if (owner == kUnclaimed || owner == key) {
    atomicAdd(&shared.changes[slot], 1U);
  } else {
    atomic_add(&histogram[key], 1);
  }
}

// Groups of eight elements of each array that a thread loads before it looks at any.
constexpr u32 kGroups = 2;

// Returns the element that a bit of differing() stands for. Registers cannot be indexed, so nested
// conditions select the word.
ROSE_DEVICE u16 element_of(const Eight<u16>& eight, u32 bit) {
  const u32 low = (bit & 1) != 0 ? eight.words[1] : eight.words[0];
  const u32 high = (bit & 1) != 0 ? eight.words[3] : eight.words[2];
  return static_cast<u16>(((bit & 2) != 0 ? high : low) >> (bit & 16));
}

// Returns a mask of the elements that differ: bit w stands for the lower half of word w, and bit
// 16 + w for its upper half. Both halves are compared at once.
ROSE_DEVICE u32 differing(const Eight<u16>& now, const Eight<u16>& old) {
  constexpr u32 kLow = 0x7FFF7FFF;
  u32 bits = 0;
#pragma unroll
  for (u32 w = 0; w < Eight<u16>::kWords; ++w) {
    const u32 differs = now.words[w] ^ old.words[w];
    bits |= ((((differs & kLow) + kLow) | differs) & ~kLow) >> (15 - w);
  }
  return bits;
}

// Counts the changes among elements `at` to `at` + 7.
ROSE_DEVICE void count_changes(const TopkHistogramParams& params, HistogramShared& shared, u64 at,
                               const Eight<u16>& now, const Eight<u16>& old) {
#pragma unroll 1
  for (u32 rest = differing(now, old); rest != 0; rest &= rest - 1) {
    const u32 bit = static_cast<u32>(__ffs(static_cast<int>(rest))) - 1;
    const u64 i = at + 2 * (bit & 3) + (bit >> 4);
    const bool is_due = params.ages != nullptr && params.ages[i] >= params.age_limit;
    const u32 key = change_key(element_of(now, bit), element_of(old, bit));
    count_key(shared, params.histogram, is_due ? kDue : key);
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

// Each thread takes groups of eight elements with the stride of the grid, kGroups at once if both
// arrays are flat. A CTA counts in shared memory, where most changes have one of few keys, and adds
// to the histogram once at its end.
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
  u64 at = (static_cast<u64>(blockIdx.x) * kHistogramThreads + threadIdx.x) * kEight;
  if (is_flat(params.bits, params.count) && is_flat(params.shadow, params.count)) {
    const u8* bits = params.bits.base;
    const u8* shadow = params.shadow.base;
#pragma unroll 1
    for (; at + (kGroups - 1) * stride + kEight <= params.count; at += kGroups * stride) {
      Eight<u16> now[kGroups], old[kGroups];
#pragma unroll
      for (u32 i = 0; i < kGroups; ++i) {
        const u64 place = (at + i * stride) * sizeof(u16);
        now[i] = *reinterpret_cast<const Eight<u16>*>(bits + place);
        old[i] = *reinterpret_cast<const Eight<u16>*>(shadow + place);
      }
#pragma unroll
      for (u32 i = 0; i < kGroups; ++i) {
        count_changes(params, shared, at + i * stride, now[i], old[i]);
      }
    }
  }
#pragma unroll 1
  for (; at < params.count; at += stride) {
    const Eight<u16> now = load_eight<u16>(params.bits, at, params.count);
    const Eight<u16> old = load_eight<u16>(params.shadow, at, params.count);
    count_changes(params, shared, at, now, old);
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
  // Thread 0 has the largest keys, so a sum over lower threads is a sum over larger keys.
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
