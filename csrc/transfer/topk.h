// Top-k: the threshold that keeps a budget, and the changes of a delta as positions and values.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "transfer/box.h"
#include "transfer/buffer.h"
#include "transfer/change_key.h"
#include "transfer/delta.h"
#include "transfer/delta_pack.h"

namespace rose::transfer {

// Returns the smallest threshold from 1 to kNothingSent with which at most `budget` elements are
// sent. Elements that are due by the ages of `options` are sent with any threshold, and count
// towards the budget.
Result<std::uint32_t> topk_threshold(const Box<const std::uint16_t>& fresh,
                                     const Box<const std::uint16_t>& shadow, std::uint64_t budget,
                                     const PackOptions& options) noexcept;

template <ElementBits T>
struct ChangedElements {
  Buffer<std::int64_t> positions;  // ascending
  Buffer<T> values;                // new values of these elements
};

// Returns the elements that `delta` changes, with the values that they have after applying it to
// `base`. Does not change `base`. Corrupt if the delta is malformed.
template <ElementBits T>
Result<ChangedElements<T>> topk_unpack(const DeltaView& delta, const Box<const T>& base) noexcept;

}  // namespace rose::transfer
