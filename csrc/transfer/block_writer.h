// Encodes what a block changes, as the kind that takes the fewest words.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "transfer/buffer.h"
#include "transfer/delta.h"
#include "transfer/simd.h"

namespace rose::transfer {

// Room for what an encoder works out about one block; used again for every block.
class EncodeScratch {
 public:
  // For blocks of at most `elements`. `isa` must be at most best_isa(); all write the same.
  static Result<EncodeScratch> create(std::size_t elements, Isa isa) noexcept;

  Isa isa() const noexcept { return isa_; }
  std::uint16_t* ranks() const noexcept { return ranks_.data(); }
  std::uint16_t* larges() const noexcept { return larges_.data(); }

 private:
  Isa isa_{Isa::kPortable};
  Buffer<std::uint16_t> ranks_;   // of the changes that are no step of one
  Buffer<std::uint16_t> larges_;  // which of the magnitudes are large
};

// How a block is best written; the ranks are in the scratch that it was planned with.
struct BlockPlan {
  Entry entry;
  std::uint32_t magnitude_bits{0};
  std::uint32_t large{0};
};

template <ElementBits T>
BlockPlan plan_block(const BlockChanges<T>& changes, const EncodeScratch& scratch) noexcept;

// Writes a block as planned, every word that its entry counts and none behind.
template <ElementBits T>
void write_block(const BlockChanges<T>& changes, const BlockPlan& plan,
                 const EncodeScratch& scratch, std::uint32_t* out) noexcept;

// Both, to `out` with room for raw_words(elements).
template <ElementBits T>
Entry encode_block(const BlockChanges<T>& changes, const EncodeScratch& scratch,
                   std::uint32_t* out) noexcept {
  const BlockPlan plan = plan_block(changes, scratch);
  write_block(changes, plan, scratch, out);
  return plan.entry;
}

}  // namespace rose::transfer
