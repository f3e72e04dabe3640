// This kernel is not in gate.cu, because some drivers cannot resolve cudaGraphSetConditional. Such
// a driver cannot load a fat binary that calls this function, but it must still load gate.cu's.
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
