// Makes a delta: what changed between the shadow and the fresh weights.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "transfer/buffer.h"
#include "transfer/delta.h"
#include "transfer/simd.h"

namespace rose::transfer {

struct PackedDelta {
  Buffer<std::uint64_t> entries;
  Buffer<std::uint32_t> payload;
  // Of the shadow after packing, with index and seed 0: what the receiver will hold.
  Digest digest;
};

struct PackOptions {
  std::uint32_t block_elements{kBlockElementsMax};
  // Above 0, only changes whose key reaches it are sent; for bf16 elements.
  std::uint32_t threshold{0};
  Isa isa{Isa::kPortable};
};

// Packs in one pass over both arrays, and moves the shadow to what was sent. The arrays have the
// same length and do not overlap. On error nothing was changed.
Result<PackedDelta> delta_pack(std::span<const std::uint16_t> fresh,
                               std::span<std::uint16_t> shadow, PackOptions options) noexcept;

// What a block changes, in ascending order of its positions.
struct BlockChanges {
  std::uint32_t elements{0};
  std::uint32_t changed{0};
  const std::uint16_t* positions{nullptr};
  const std::uint16_t* fresh{nullptr};  // of each position
  const std::uint16_t* old{nullptr};
  std::uint16_t* exceptions{nullptr};  // room for changed + 1 ranks
};

// Encodes one block to `out`, which needs room for raw_words(elements); writes every word that its
// entry counts, and none behind.
Entry encode_block(const BlockChanges& changes, std::uint32_t* out) noexcept;

}  // namespace rose::transfer
