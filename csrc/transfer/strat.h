// The wire encoding of deltas: recodes blocks as STRAT if that takes fewer words, and back.
// docs/protocol.md, "STRAT".
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "transfer/buffer.h"
#include "transfer/class_rule.h"
#include "transfer/delta.h"
#include "transfer/simd.h"

namespace rose::transfer {

inline constexpr std::uint32_t kStratThreadsMax = 64;

struct StratOptions {
  ClassRule rule;
  std::uint32_t threads{1};  // 1 to kStratThreadsMax; every number gives the same bits
  Isa isa{Isa::kPortable};
};

// The table and the payload of a recoded delta.
struct RecodedDelta {
  Buffer<std::uint64_t> entries;
  Buffer<std::uint32_t> payload;
};

// Recodes a delta for the wire. `weights` are the delta's base, or its result if `is_after`.
template <ElementBits T>
Result<RecodedDelta> strat_pack(const DeltaView& delta, std::span<const T> weights, bool is_after,
                                const StratOptions& options) noexcept;

// Restores a delta from its wire encoding. `base` is the delta's base. `encoded` is not trusted:
// Corrupt, with the number of the block, if a block is invalid. With a wrong base the result is
// Corrupt or a wrong delta.
template <ElementBits T>
Result<RecodedDelta> strat_unpack(const DeltaView& encoded, std::span<const T> base,
                                  const StratOptions& options) noexcept;

}  // namespace rose::transfer
