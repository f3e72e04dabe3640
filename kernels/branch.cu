// Separate from gate.cu, because a driver that cannot resolve cudaGraphSetConditional loads no fat
// binary that calls it, and gates do not need it.
#include "device_world.h"
#include "kernels/gate.h"

namespace {

struct GraphWorld : rose::kernels::DeviceWorld {
  __device__ void set_condition(std::uint64_t condition, unsigned value) const {
    cudaGraphSetConditional(condition, value);
  }
};

}  // namespace

// One thread, in front of an IF node whose body is the segment.
extern "C" __global__ __launch_bounds__(1) void branch_kernel(
    const rose::kernels::BranchParams branch) {
  GraphWorld world;
  rose::kernels::branch_segment(branch, world);
}
