// topk_histogram_kernel and topk_threshold_kernel: which changes are large enough for a budget. The
// threshold stays on the device, where delta_pack reads it.
#pragma once

#include "box.h"
#include "change_key.h"

namespace rose::kernels {

constexpr u32 kHistogramThreads = 512;
// A CTA counts in 32 bits, so it may see fewer elements than 2^32.
constexpr u64 kHistogramElementsMax = 1ULL << 31;

// Any grid that gives each CTA at most kHistogramElementsMax elements.
struct TopkHistogramParams {
  Box bits;  // of 16-bit elements
  Box shadow;
  u64 count;
  const u8* ages;  // of each element; or null
  u64 age_limit;   // a change whose age has reached it is due
  // Of each key the changes that have it and are not due; behind these, those that are. Added to
  // what is there.
  u64* histogram;
};
constexpr u32 kHistogramBins = kKeys + 1;

constexpr u32 kThresholdThreads = 1024;

// One CTA.
struct TopkThresholdParams {
  const u64* histogram;  // kHistogramBins numbers
  u64 budget;            // elements; what is due counts among them
  u32* threshold;        // becomes 1 to kKeys
};

}  // namespace rose::kernels
