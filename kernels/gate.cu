#include "kernels/gate.h"

namespace {

// The host's memory behind the link, and the device's own clock.
struct DeviceWorld {
  // A look crosses the link: often enough not to add to a wake-up, seldom enough not to fill it.
  static constexpr unsigned kPauseNs = 500;

  __device__ std::uint32_t load(const std::uint32_t* word) const {
    std::uint32_t value;
    asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
  }
  __device__ void store(std::uint32_t* word, std::uint32_t value) const {
    asm volatile("st.release.sys.u32 [%0], %1;" : : "l"(word), "r"(value) : "memory");
  }
  __device__ std::uint64_t now_ns() const {
    std::uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
  }
  __device__ void set_condition(std::uint64_t condition, unsigned value) const {
    cudaGraphSetConditional(condition, value);
  }
  __device__ void pause() const { __nanosleep(kPauseNs); }
};

}  // namespace

// One thread. The segment behind it in the stream starts when it ends.
extern "C" __global__ __launch_bounds__(1) void gate_kernel(const rose::kernels::GateParams gate) {
  DeviceWorld world;
  rose::kernels::start_segment(gate, world);
}

// One thread, before an IF node whose body is the segment.
extern "C" __global__ __launch_bounds__(1) void branch_kernel(
    const rose::kernels::BranchParams branch) {
  DeviceWorld world;
  rose::kernels::branch_segment(branch, world);
}
