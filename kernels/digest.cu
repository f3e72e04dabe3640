#include "digest.h"

#include "block_scan.h"
#include "eight.h"

namespace rose::kernels {
namespace {

template <typename T>
ROSE_DEVICE DigestSum digest(const DigestParams& params) {
  const u64 stride = static_cast<u64>(gridDim.x) * kDigestThreads * kEight;
  const u64 first = (static_cast<u64>(blockIdx.x) * kDigestThreads + threadIdx.x) * kEight;
  DigestSum sum;
#pragma unroll(sizeof(T) == 2 ? 4 : 1)
  for (u64 at = first; at < params.count; at += stride) {
    const Eight<T> eight = load_eight<T>(params.bits, at, params.count);
    add_to_digest(sum, eight, at, params.count, params.first_index, params.seed);
  }
  return sum;
}

}  // namespace
}  // namespace rose::kernels

using rose::kernels::DigestParams;

// Any grid. Each thread takes groups of eight elements with the stride of the grid; each warp adds
// its two sums.
extern "C" __global__ __launch_bounds__(rose::kernels::kDigestThreads) void digest_kernel(
    const DigestParams params) {
  using namespace rose::kernels;
  with_width(params.width,
             [&](auto zero) { add_atomically(digest<decltype(zero)>(params), params.sums); });
}
