// The largest changes only: which threshold fits a budget, and what such a delta changes.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "transfer/box.h"
#include "transfer/buffer.h"
#include "transfer/change_key.h"
#include "transfer/delta.h"
#include "transfer/delta_pack.h"

namespace rose::transfer {

// The smallest threshold from 1 to kNothingSent with which at most `budget` elements are sent; what
// is due by the ages of `options` counts whatever the threshold.
Result<std::uint32_t> topk_threshold(const Box<const std::uint16_t>& fresh,
                                     const Box<const std::uint16_t>& shadow, std::uint64_t budget,
                                     const PackOptions& options) noexcept;

template <ElementBits T>
struct ChangedElements {
  Buffer<std::int64_t> positions;  // ascending
  Buffer<T> values;                // what the elements there become
};

// What `delta` makes of `base`, which stays as it is. Corrupt when the delta is not well formed.
template <ElementBits T>
Result<ChangedElements<T>> topk_unpack(const DeltaView& delta, const Box<const T>& base) noexcept;

}  // namespace rose::transfer
