// The largest changes only: the threshold for a budget, and the changes of such a delta.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "transfer/box.h"
#include "transfer/buffer.h"
#include "transfer/change_key.h"
#include "transfer/delta.h"
#include "transfer/delta_pack.h"

namespace rose::transfer {

// The smallest threshold from 1 to kNothingSent that sends at most `budget` elements; those that
// are due by the ages of `options` count at any threshold.
Result<std::uint32_t> topk_threshold(const Box<const std::uint16_t>& fresh,
                                     const Box<const std::uint16_t>& shadow, std::uint64_t budget,
                                     const PackOptions& options) noexcept;

template <ElementBits T>
struct ChangedElements {
  Buffer<std::int64_t> positions;  // ascending
  Buffer<T> values;                // new values of these elements
};

// The result of `delta` on `base`, which is not changed. Corrupt if the delta is malformed.
template <ElementBits T>
Result<ChangedElements<T>> topk_unpack(const DeltaView& delta, const Box<const T>& base) noexcept;

}  // namespace rose::transfer
