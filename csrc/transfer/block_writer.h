// Encodes the changes of a block as the kind with the fewest words.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "transfer/buffer.h"
#include "transfer/delta.h"
#include "transfer/simd.h"

namespace rose::transfer {

// Scratch memory of an encoder, reused for every block.
class EncodeScratch {
 public:
  // `elements` is the size of the largest block. `isa` must be at most best_isa(); every
  // instruction set gives the same bits.
  static Result<EncodeScratch> create(std::size_t elements, Isa isa) noexcept;

  Isa isa() const noexcept { return isa_; }
  std::uint16_t* ranks() const noexcept { return ranks_.data(); }
  std::uint16_t* larges() const noexcept { return larges_.data(); }

 private:
  Isa isa_{Isa::kPortable};
  Buffer<std::uint16_t> ranks_;   // of the changes whose size is not 1
  Buffer<std::uint16_t> larges_;  // indices of the large magnitudes
};

// The best encoding of a block. The ranks are in the EncodeScratch that plan_block() used.
struct BlockPlan {
  Entry entry;
  std::uint32_t magnitude_bits{0};
  std::uint32_t large{0};
};

template <ElementBits T>
BlockPlan plan_block(const BlockChanges<T>& changes, const EncodeScratch& scratch) noexcept;

// Writes a block as planned: exactly plan.entry.words words.
template <ElementBits T>
void write_block(const BlockChanges<T>& changes, const BlockPlan& plan,
                 const EncodeScratch& scratch, std::uint32_t* out) noexcept;

// Plans and writes a block. `out` must have room for raw_words(elements) words.
template <ElementBits T>
Entry encode_block(const BlockChanges<T>& changes, const EncodeScratch& scratch,
                   std::uint32_t* out) noexcept {
  const BlockPlan plan = plan_block(changes, scratch);
  write_block(changes, plan, scratch, out);
  return plan.entry;
}

}  // namespace rose::transfer
