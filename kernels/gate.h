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

// The gate of a segment that is the body of an IF node: what a launch gets by value.
struct BranchParams {
  GateParams gate;
  std::uint64_t condition;   // of the IF node behind it: the graph's conditional handle
  std::uint32_t skips;       // any of these bits in `state` leaves the segment out
  std::uint32_t has_waited;  // memory operations before it have: 1, or 0
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

// Waits for the segment's turn. A kernel cannot take back what lies behind it in the
// stream, so a wait that ends without a turn lets that one segment go and says so in `overdue`: at
// most one segment for each limit, which is for a host that is gone or has forgotten the gate.
template <class World>
ROSE_HD void await_turn(const GateParams& gate, World& world) {
  const std::uint64_t from_ns = world.now_ns();
  while (!may_start(gate, world)) {
    if (world.now_ns() - from_ns >= gate.limit_ns) {
      world.store(gate.overdue, world.load(gate.overdue) + 1);
      break;
    }
    world.pause();
  }
}

// Only the borrower's stream writes it, one gate after the other.
template <class World>
ROSE_HD void count_segment(const GateParams& gate, World& world) {
  world.store(gate.passed, world.load(gate.passed) + 1);
}

template <class World>
ROSE_HD void start_segment(const GateParams& gate, World& world) {
  await_turn(gate, world);
  count_segment(gate, world);
}

// The same for a segment that an abort may leave out; `world` also sets conditions. Decided before
// it is counted: as long as a segment is not counted the host leaves the bits as they are, so an
// abort leaves out all that had not started when the device saw it, the last one too.
template <class World>
ROSE_HD void branch_segment(const BranchParams& branch, World& world) {
  if (branch.has_waited == 0) await_turn(branch.gate, world);
  const bool is_left_out = (world.load(branch.gate.state) & branch.skips) != 0;
  world.set_condition(branch.condition, is_left_out ? 0U : 1U);
  count_segment(branch.gate, world);
}

}  // namespace rose::kernels
