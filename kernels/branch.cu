// This kernel is separate from gate.cu: a driver that cannot resolve cudaGraphSetConditional cannot
// load a fat binary that calls it, and must still be able to load the gates.
#include "device_world.h"
#include "kernels/gate.h"

namespace {

struct GraphWorld : rose::kernels::DeviceWorld {
  __device__ void set_condition(std::uint64_t condition, unsigned value) const {
    cudaGraphSetConditional(condition, value);
  }
};

}  // namespace

// One thread runs it, in front of an IF node whose body is the segment.
extern "C" __global__ __launch_bounds__(1) void branch_kernel(
    const rose::kernels::BranchParams branch) {
  GraphWorld world;
  rose::kernels::branch_segment(branch, world);
}
