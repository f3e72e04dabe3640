#include "kernels/gate.h"

#include "device_world.h"

// Does nothing. The self-test of gates launches it to see which streams continue.
extern "C" __global__ __launch_bounds__(1) void probe_kernel() {}

// One thread runs it. The next segment in the stream starts when the kernel ends.
extern "C" __global__ __launch_bounds__(1) void gate_kernel(const rose::kernels::GateParams gate) {
  rose::kernels::DeviceWorld world;
  rose::kernels::start_segment(gate, world);
}
