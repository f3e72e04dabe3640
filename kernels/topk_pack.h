// topk_histogram_kernel and topk_threshold_kernel: compute the smallest key that is sent, so that
// the changes keep to a budget. This threshold stays on the device, where delta_pack reads it.
#pragma once

#include "box.h"
#include "change_key.h"

namespace rose::kernels {

constexpr u32 kHistogramThreads = 512;
// A CTA counts in 32 bits, so it must see fewer than 2^32 elements.
constexpr u64 kHistogramElementsMax = 1ULL << 31;

// Any grid with at most kHistogramElementsMax elements per CTA.
struct TopkHistogramParams {
  Box bits;  // 16-bit elements
  Box shadow;
  u64 count;
  const u8* ages;  // one per element; or null
  u64 age_limit;   // age from which a change is due
  // For each key, the number of changes that are not due; in the last bin, the number of due
  // changes. The kernel adds to the existing content.
  u64* histogram;
};
constexpr u32 kHistogramBins = kKeys + 1;

constexpr u32 kThresholdThreads = 1024;

// One CTA.
struct TopkThresholdParams {
  const u64* histogram;  // kHistogramBins numbers
  u64 budget;            // most changes to send, due ones included
  u32* threshold;        // output, 1 to kKeys
};

}  // namespace rose::kernels
