// Two deltas in a row as one.
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

// The delta that does what `first` and then `second` do; the time it takes follows their sizes, not
// that of the weights. Corrupt when one of them is not well formed, invalid when they are not of
// the same array.
Result<MergedDelta> delta_merge(const DeltaView& first, const DeltaView& second) noexcept;

}  // namespace rose::transfer
