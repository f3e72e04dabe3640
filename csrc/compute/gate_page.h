// What both parties of a gate see, in one memfd: the word first, then what the borrower measures.
#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>

#include "base/clock.h"
#include "base/histogram.h"
#include "compute/durations.h"
#include "compute/gate_word.h"

namespace rose::compute {

// The borrower records, whichever process it is in; the creditor's estimate of a segment and all
// reports read it here. What drains `recent` is one party, at the other end.
struct GatePage {
  GateWord word{};
  Histogram segments;
  Histogram pauses;  // from a close to the end of the segment it caught
  DurationRing recent;
  std::atomic<std::uint64_t> pause_count{0};
  std::atomic<std::uint64_t> abort_count{0};
  std::atomic<std::uint64_t> forced_count{0};
  std::atomic<Nanoseconds> blocked_ns{0};
  // 1 from a step's first segment, started or in a device's stream, to the step's end: something
  // may have to wait for it.
  std::atomic<std::uint32_t> mid_step{0};
};

static_assert(std::is_standard_layout_v<GatePage> && std::is_trivially_destructible_v<GatePage>);

}  // namespace rose::compute
