// Makes the headers of kernels/ valid for a plain C++ compiler: launchers need their structs, the
// CPU twins need the key of a change, and tests run the kernels on a CPU.
#pragma once

#include <cstdint>

// ROSE_HD: a formula for host and device. ROSE_DEVICE: a step of a kernel, always inlined, so that
// the compiler sees which pointers are shared memory.
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

// Elements per thread of a CTA that handles a delta block of 16,384 or 65,536 elements: four words
// of a bit mask.
constexpr u32 kElementsOfThread = 128;
constexpr u32 kWordsOfThread = kElementsOfThread / 32;
constexpr u32 kBlockMax = 65536;
constexpr u32 kMaskWordsMax = kBlockMax / 32;
constexpr u32 kThreadsMax = kBlockMax / kElementsOfThread;
// Number of CTAs of kThreadsMax threads whose registers must fit into one multiprocessor. Without
// this bound the compiler uses fewer registers, and spills.
constexpr u32 kCtas = 2;

// A CTA that reads a block of a delta has fewer threads, because few elements of a block change.
constexpr u32 kReadThreadsMax = 256;
ROSE_HD inline u32 threads_to_read(u64 block_elements) {
  return block_elements == kBlockMax ? kReadThreadsMax : 128;
}

ROSE_HD inline u32 floor_log2(u32 number) {
#ifdef __CUDA_ARCH__
  return 31U - static_cast<u32>(__clz(static_cast<int>(number)));
#else
  return 31U - static_cast<u32>(__builtin_clz(number));
#endif
}

// Reads a number that other threads may write at the same time. Returns a value that it had.
template <typename Number>
ROSE_DEVICE Number load_relaxed(const Number* at) {
#ifdef __CUDACC__
  return *static_cast<const volatile Number*>(at);  // relaxed in PTX's memory model
#else
  return __atomic_load_n(at, __ATOMIC_RELAXED);
#endif
}

// Writes a number that other threads may read at the same time.
ROSE_DEVICE void store_relaxed(u64* at, u64 number) {
#ifdef __CUDACC__
  *static_cast<volatile u64*>(at) = number;
#else
  __atomic_store_n(at, number, __ATOMIC_RELAXED);
#endif
}

ROSE_HD inline u32 bit_length(u32 number) { return number == 0 ? 0 : floor_log2(number) + 1; }

// The lowest `width` bits set; `width` is 0 to 32.
ROSE_HD inline u32 low_mask(u32 width) { return static_cast<u32>((u64{1} << width) - 1); }

}  // namespace rose::kernels
