// The gate as a kernel: one thread in the borrower's stream waits until its segment may start.
#pragma once

#include "device.h"

namespace rose::kernels {

// The device's addresses of a gate's words, passed by value to gate_kernel. A captured launch can
// be replayed, because no parameter depends on the segment.
struct GateParams {
  const std::uint32_t* state;  // low half of the gate's state
  const std::uint32_t* credit;
  std::uint32_t* passed;
  std::uint32_t* overdue;
  std::uint64_t limit_ns;
  std::uint32_t lets_go;  // with any of these bits in `state`, a segment with credit may start
};

// The gate of a segment that is the body of an IF node, passed by value.
struct BranchParams {
  GateParams gate;
  std::uint64_t condition;   // conditional handle of the IF node that follows
  std::uint32_t skips;       // with any of these bits in `state` the segment is skipped
  std::uint32_t has_waited;  // 1 if memory operations in front of this gate do its waiting, else 0
};

// `World` gives access to memory and clock: system-wide load (acquire) and store (release), now_ns,
// and a pause between two reads.

// Returns true if the segment may start. The credit is read first. Credit from before a close is
// not enough, so the open bit, which is read after the credit, decides. A new opening gives credit
// from `passed` on, and so includes this segment.
template <class World>
ROSE_HD bool may_start(const GateParams& gate, World& world) {
  const std::uint32_t left = world.load(gate.credit) - world.load(gate.passed);
  if (left == 0 || left > 0x7FFFFFFFU) return false;
  return (world.load(gate.state) & gate.lets_go) != 0;
}

// Waits until the segment may start. A kernel cannot remove work behind it in the stream. So when
// the time limit is over, the kernel lets this one segment start and counts the segment in
// `overdue`. If the host is gone, or has forgotten the gate, at most one segment starts per limit.
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

// Time limit of meet(). Longer than the self-test of gates waits for a kernel.
constexpr std::uint64_t kMeetNs = 40'000'000;

// Returns when `count` CTAs have called this, so all of them are on the device at once, or after
// kMeetNs. `arrived` is 0 at first.
template <class World>
ROSE_HD void meet(std::uint32_t* arrived, std::uint32_t count, World& world) {
  const std::uint64_t from_ns = world.now_ns();
  world.add_one(arrived);
  while (world.load(arrived) < count && world.now_ns() - from_ns < kMeetNs) world.pause();
}

// Counts the segment. Only the borrower's stream writes `passed`, one gate after the other.
template <class World>
ROSE_HD void count_segment(const GateParams& gate, World& world) {
  world.store(gate.passed, world.load(gate.passed) + 1);
}

template <class World>
ROSE_HD void start_segment(const GateParams& gate, World& world) {
  await_turn(gate, world);
  count_segment(gate, world);
}

// As start_segment(), for a segment that an abort may skip; `world` also sets conditions. The
// kernel reads the bits of the abort before it counts the segment, and the host changes them only
// after the count. So an abort skips every segment that had not started when the device read the
// bits, including the last one.
template <class World>
ROSE_HD void branch_segment(const BranchParams& branch, World& world) {
  if (branch.has_waited == 0) await_turn(branch.gate, world);
  const bool is_left_out = (world.load(branch.gate.state) & branch.skips) != 0;
  world.set_condition(branch.condition, is_left_out ? 0U : 1U);
  count_segment(branch.gate, world);
}

}  // namespace rose::kernels
