// The memfd that serving and a borrower share: the gate word, then the borrower's measurements.
#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>

#include "base/clock.h"
#include "base/histogram.h"
#include "compute/durations.h"
#include "compute/gate_word.h"

namespace rose::compute {

// The borrower writes the measurements, in whichever process it runs. The exceptions are
// `forced_count`, which serving's watchdog writes, and `expected_until_ns`, which a process in
// front of serving's engine writes. The creditor's segment estimates and all reports read the
// measurements. Only one reader, in serving's process, drains `recent`.
struct GatePage {
  GateWord word{};
  Histogram segments;
  Histogram pauses;  // from a close to the end of the running segment
  DurationRing recent;
  std::atomic<std::uint64_t> pause_count{0};
  std::atomic<std::uint64_t> abort_count{0};
  std::atomic<std::uint64_t> forced_count{0};
  std::atomic<Nanoseconds> blocked_ns{0};
  // 1 from the start of the step's first segment (on a device: from its enqueueing) to the end of
  // the step. Other work may have to wait for a step that has begun to run.
  std::atomic<std::uint32_t> mid_step{0};
  // A request is on its way to serving's engine, and should reach it before this time.
  std::atomic<Nanoseconds> expected_until_ns{0};
};

static_assert(std::is_standard_layout_v<GatePage> && std::is_trivially_destructible_v<GatePage>);

}  // namespace rose::compute
