// The 64 bytes that stop a borrower. They lie in a memfd, so another process and, through
// host-mapped memory, a device see the same words.
#pragma once

#include <atomic>
#include <cstdint>

namespace rose::compute {

// Writers: `state`: serving (close), creditor (open) and borrower (drain bit). `credit`: creditor,
// and the borrower while it drains. `passed`: borrower. `running`: borrower; serving may change it
// from 1 to 2. `step`: borrower and serving. `overdue`: device. `on_device`: borrower, before its
// first step.
//
// 1. `state` holds the open bit and the close epoch in one word. An opening succeeds only while the
//    epoch is that of its decision, so a close in between wins.
// 2. credit - passed (mod 2^32) segments may still start; never more than a quantum. credit only
//    grows while the gate is open; opening a closed gate sets a new value.
// 3. The borrower sets `running` before its last check of `state`, and clears it when the segment
//    has ended. On a device `running` stays kIdle: there serving's host never waits for a segment,
//    and the priority of serving's streams limits the cost of a segment that still runs.
// 4. While the drain bit is set no opening succeeds, and a device starts the segments in its
//    stream, up to `credit`, as if the gate were open. The borrower's host adds no more segments.
struct GateWord {
  static constexpr std::uint64_t kOpenBit = 1;
  static constexpr std::uint64_t kDrainBit = 2;
  static constexpr unsigned kEpochShift = 32;
  static constexpr std::uint32_t kMagic = 0x32475752;  // "RWG2"

  enum Running : std::uint32_t { kIdle = 0, kRuns = 1, kRunsWithWaiter = 2 };
  enum Step : std::uint32_t { kNoStep = 0, kInStep = 1, kAbortAsked = 2 };

  std::atomic<std::uint64_t> state;
  std::atomic<std::int64_t> closed_at_ns;  // CLOCK_BOOTTIME of the last open-to-closed move
  std::atomic<std::uint32_t> credit;
  std::atomic<std::uint32_t> passed;   // started segments
  std::atomic<std::uint32_t> running;  // futex on which serving waits
  std::atomic<std::uint32_t> bell;     // futex on which the borrower waits
  std::atomic<std::uint32_t> demand;   // futex on which the creditor waits
  std::atomic<std::uint32_t> step;
  std::atomic<std::uint32_t> close_reason;
  std::atomic<std::uint32_t> low_water;  // the borrower rings `demand` if its credit is this low
  std::atomic<std::uint32_t> shut_down;
  std::atomic<std::uint32_t> magic;
  std::atomic<std::uint32_t> overdue;    // segments that a device's gate let go at its time limit
  std::atomic<std::uint32_t> on_device;  // 1: a device's stream passes the gate, not a thread
};

static_assert(sizeof(GateWord) == 64);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

}  // namespace rose::compute
