// Two consecutive deltas as one.
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

// A delta with the effect of `first`, then `second`; the time depends on their sizes, not on that
// of the weights. Corrupt if one is malformed, invalid if they are not for the same array.
Result<MergedDelta> delta_merge(const DeltaView& first, const DeltaView& second) noexcept;

}  // namespace rose::transfer
