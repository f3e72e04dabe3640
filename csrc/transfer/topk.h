// The largest changes only: which threshold fits a budget, and what such a delta changes.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "transfer/buffer.h"
#include "transfer/change_key.h"
#include "transfer/delta.h"
#include "transfer/simd.h"

namespace rose::transfer {

// The smallest threshold from 1 to kNothingSent that at most `budget` changed elements reach.
Result<std::uint32_t> topk_threshold(std::span<const std::uint16_t> fresh,
                                     std::span<const std::uint16_t> shadow, std::uint64_t budget,
                                     Isa isa) noexcept;

struct ChangedElements {
  Buffer<std::int64_t> positions;  // ascending
  Buffer<std::uint16_t> values;    // what the elements there become
};

// What `delta` makes of `base`, which stays as it is. Corrupt when the delta is not well formed.
Result<ChangedElements> topk_unpack(const DeltaView& delta,
                                    std::span<const std::uint16_t> base) noexcept;

}  // namespace rose::transfer
