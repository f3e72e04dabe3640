// The memory and the clock that a gate uses on a device. Only for nvcc; tests have their own.
#pragma once

#include <cstdint>

namespace rose::kernels {

// Host memory behind the link, and the device's clock.
struct DeviceWorld {
  // Pause between two reads of a word. Each read crosses the link: reads must be frequent enough
  // to wake up soon, and rare enough not to fill the link.
  static constexpr unsigned kPauseNs = 500;

  __device__ std::uint32_t load(const std::uint32_t* word) const {
    std::uint32_t value;
    asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
  }
  __device__ void store(std::uint32_t* word, std::uint32_t value) const {
    asm volatile("st.release.sys.u32 [%0], %1;" : : "l"(word), "r"(value) : "memory");
  }
  __device__ void add_one(std::uint32_t* word) const { atomicAdd(word, 1); }
  __device__ std::uint64_t now_ns() const {
    std::uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
  }
  __device__ void pause() const { __nanosleep(kPauseNs); }
};

}  // namespace rose::kernels
