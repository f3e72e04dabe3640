// The gate as a kernel: what one thread does in the borrower's stream until its segment may start.
#pragma once

#include "device.h"

namespace rose::kernels {

// The words of a gate where the device sees them, by value from the launcher to gate_kernel. A
// captured launch is the same launch: no number in it belongs to one segment.
struct GateParams {
  const std::uint32_t* state;  // its low half: the bits are in `lets_go`
  const std::uint32_t* credit;
  std::uint32_t* passed;
  std::uint32_t* overdue;
  std::uint64_t limit_ns;
  std::uint32_t lets_go;  // any of these bits in `state` lets a segment with credit start
};

// `World` is the memory and the clock: load (acquire) and store (release) for all of the system,
// now_ns, and pause between two looks.

// Credit first: one that was there before a close is not enough, the open bit seen after it is what
// counts. Whoever opens again gives credit from `passed` on, so to this segment too.
template <class World>
ROSE_HD bool may_start(const GateParams& gate, World& world) {
  const std::uint32_t left = world.load(gate.credit) - world.load(gate.passed);
  if (left == 0 || left > 0x7FFFFFFFU) return false;
  return (world.load(gate.state) & gate.lets_go) != 0;
}

// Waits for the segment's turn and counts it. A kernel cannot take back what lies behind it in the
// stream, so a wait that ends without a turn lets that one segment go and says so in `overdue`: at
// most one segment for each limit, which is for a host that is gone or has forgotten the gate.
template <class World>
ROSE_HD void start_segment(const GateParams& gate, World& world) {
  const std::uint64_t from_ns = world.now_ns();
  while (!may_start(gate, world)) {
    if (world.now_ns() - from_ns >= gate.limit_ns) {
      world.store(gate.overdue, world.load(gate.overdue) + 1);
      break;
    }
    world.pause();
  }
  // Only the borrower's stream writes it, one gate after the other.
  world.store(gate.passed, world.load(gate.passed) + 1);
}

}  // namespace rose::kernels
