#include "digest.h"

#include "block_scan.h"
#include "eight.h"

namespace rose::kernels {
namespace {

// Two digest words, whatever the width of their elements.
struct alignas(16) Unit {
  u64 words[2];
};

ROSE_DEVICE void add_unit(DigestSum& sum, const Unit& unit, const DigestKeys& keys) {
#pragma unroll
  for (u32 i = 0; i < 2; ++i) sum.add(unit.words[i], keys.after(i));
}

// Adds `count` units from word `first_word` of the tensor on.
ROSE_DEVICE void add_units(DigestSum& sum, const Unit* units, u64 count, u64 first_word, u64 seed) {
  constexpr u32 kAtOnce = 4;
  const u64 stride = static_cast<u64>(gridDim.x) * kDigestThreads;
  u64 at = static_cast<u64>(blockIdx.x) * kDigestThreads + threadIdx.x;
  DigestKeys keys = DigestKeys::of(first_word + 2 * at, seed);
#pragma unroll 1
  for (; at + (kAtOnce - 1) * stride < count; at += kAtOnce * stride) {
    Unit loaded[kAtOnce];
#pragma unroll
    for (u32 i = 0; i < kAtOnce; ++i) loaded[i] = units[at + i * stride];
#pragma unroll
    for (u32 i = 0; i < kAtOnce; ++i) {
      add_unit(sum, loaded[i], keys);
      keys = keys.after(2 * stride);
    }
  }
#pragma unroll 1
  for (; at < count; at += stride) {
    add_unit(sum, units[at], keys);
    keys = keys.after(2 * stride);
  }
}

template <typename T>
ROSE_DEVICE DigestSum digest(const DigestParams& params) {
  const Box& box = params.bits;
  DigestSum sum;
  u64 done = 0;
  if (is_flat(box, params.count)) {
    constexpr u64 kOfUnit = sizeof(Unit) / sizeof(T);
    const u64 units = params.count / kOfUnit;
    add_units(sum, reinterpret_cast<const Unit*>(box.base), units,
              params.first_index / (kOfUnit / 2), params.seed);
    done = units * kOfUnit;
  }
  const u64 stride = static_cast<u64>(gridDim.x) * kDigestThreads * kEight;
  const u64 first = done + (static_cast<u64>(blockIdx.x) * kDigestThreads + threadIdx.x) * kEight;
#pragma unroll 1
  for (u64 at = first; at < params.count; at += stride) {
    const Eight<T> eight = load_eight<T>(params.bits, at, params.count);
    add_to_digest(sum, eight, at, params.count, params.first_index, params.seed);
  }
  return sum;
}

}  // namespace
}  // namespace rose::kernels

using rose::kernels::DigestParams;

// Any grid. Each thread takes 16 bytes of flat memory, or eight elements of other layouts, with the
// stride of the grid; each warp adds its two sums.
extern "C" __global__ __launch_bounds__(rose::kernels::kDigestThreads) void digest_kernel(
    const DigestParams params) {
  using namespace rose::kernels;
  with_width(params.width,
             [&](auto zero) { add_atomically(digest<decltype(zero)>(params), params.sums); });
}
