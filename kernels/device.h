// What lets a plain C++ compiler take the headers of kernels/: the launchers share their structs,
// the CPU twins the key of a change, and the tests run the kernels themselves on a CPU.
#pragma once

#include <cstdint>

// ROSE_HD: a formula, for both sides. ROSE_DEVICE: a step of a kernel, inlined into it, so that the
// compiler sees which pointers are shared memory.
#ifdef __CUDACC__
#define ROSE_HD __host__ __device__
#define ROSE_DEVICE __device__ __forceinline__
#else
#define ROSE_HD
#define ROSE_DEVICE inline
#endif

namespace rose::kernels {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

constexpr u32 kWarp = 32;

// A CTA has one thread for this many elements of its delta block: four words of a bit mask each.
constexpr u32 kElementsOfThread = 128;
template <u32 kBlockElements>
constexpr u32 kThreadsOf = kBlockElements / kElementsOfThread;
// CTAs whose registers a multiprocessor must hold at once. Without this bound the compiler saves
// registers for more of them, and spills.
template <u32 kBlockElements>
constexpr u32 kCtasOf = 1280 / kThreadsOf<kBlockElements>;

ROSE_HD inline u32 floor_log2(u32 number) {
#ifdef __CUDA_ARCH__
  return 31U - static_cast<u32>(__clz(static_cast<int>(number)));
#else
  return 31U - static_cast<u32>(__builtin_clz(number));
#endif
}

}  // namespace rose::kernels
