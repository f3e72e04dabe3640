// Merges two consecutive deltas into one.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "transfer/buffer.h"
#include "transfer/delta.h"

namespace rose::transfer {

struct MergedDelta {
  Buffer<std::uint64_t> entries;
  Buffer<std::uint32_t> payload;
};

// Returns a delta with the effect of `first`, then `second`. The time depends on the sizes of the
// deltas, not on the size of the weights. Corrupt if a delta is malformed, InvalidArgument if the
// two are not for the same array.
Result<MergedDelta> delta_merge(const DeltaView& first, const DeltaView& second) noexcept;

}  // namespace rose::transfer
