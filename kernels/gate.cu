#include "kernels/gate.h"

#include "device_world.h"

// Does nothing. The self-test of gates launches it to see which streams continue.
extern "C" __global__ __launch_bounds__(1) void probe_kernel() {}

namespace {

__device__ unsigned arrived_ctas;

}  // namespace

// With a CTA for each multiprocessor, each with all shared memory of one: ends at once only if all
// CTAs are on the device at the same time. Once per loaded module.
extern "C" __global__ __launch_bounds__(1) void whole_device_kernel() {
  rose::kernels::DeviceWorld world;
  rose::kernels::meet(&arrived_ctas, gridDim.x, world);
}

// One thread runs it. The next segment in the stream starts when the kernel ends.
extern "C" __global__ __launch_bounds__(1) void gate_kernel(const rose::kernels::GateParams gate) {
  rose::kernels::DeviceWorld world;
  rose::kernels::start_segment(gate, world);
}
