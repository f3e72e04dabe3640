// topk_histogram_kernel and topk_threshold_kernel: which changes are large enough for a budget. The
// threshold stays on the device, where delta_pack reads it.
#pragma once

#include "change_key.h"

namespace rose::kernels {

constexpr u32 kHistogramThreads = 512;
// A CTA counts in 32 bits, so it may see fewer elements than 2^32.
constexpr u64 kHistogramElementsMax = 1ULL << 31;

// Any grid that gives each CTA at most kHistogramElementsMax elements.
struct TopkHistogramParams {
  const u16* bits;
  const u16* shadow;
  u64 count;
  u64* histogram;  // kKeys numbers; those of the changed elements are added by key
};

constexpr u32 kThresholdThreads = 1024;

// One CTA.
struct TopkThresholdParams {
  const u64* histogram;
  u64 budget;      // elements
  u32* threshold;  // becomes 1 to kKeys
};

}  // namespace rose::kernels
