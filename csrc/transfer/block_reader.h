// Reads the blocks of a delta that check_delta() found well formed.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "transfer/buffer.h"
#include "transfer/elias_fano.h"

namespace rose::transfer {

// One block of a delta: where it is, and its words.
struct BlockView {
  std::uint64_t first{0};  // its first element
  std::uint32_t elements{0};
  Entry entry;
  const std::uint32_t* words{nullptr};
};

// Calls visit(BlockView) for every block, in order.
template <typename Visit>
void for_each_block(const DeltaView& delta, Visit visit) noexcept {
  const std::uint32_t* words = delta.payload.data();
  std::uint64_t first = 0;
  for (const std::uint64_t bits : delta.entries) {
    const Entry entry = Entry::decode(bits);
    visit(BlockView{.first = first,
                    .elements = elements_of_block(delta.count, first, delta.block_elements),
                    .entry = entry,
                    .words = words});
    words += entry.words;
    first += delta.block_elements;
  }
}

// XOR of an element, from a RAW block.
inline std::uint16_t raw_xor(const BlockView& block, std::uint32_t position) noexcept {
  return static_cast<std::uint16_t>(block.words[position / 2] >> (position % 2 * 16));
}

// Which elements a GAP block changes and how. Room for the positions is the caller's.
class GapReader {
 public:
  // `positions` has room for entry.changed numbers and is filled here.
  GapReader(const BlockView& block, std::uint16_t* positions) noexcept
      : block_{block}, positions_{positions} {
    const EliasFanoShape shape{block.elements, block.entry.changed};
    EliasFanoReader reader{block.words, block.elements, block.entry.changed};
    for (std::uint32_t i = 0; i < block.entry.changed; ++i) {
      positions[i] = static_cast<std::uint16_t>(reader.next());
    }
    signs_ = block.words + shape.words();
  }

  // Changes elements in place, `at(rank, position)` being a reference to one: first as if all were
  // steps, where an exception is one of +1; then the exceptions are mended.
  template <typename At>
  void change(At at, bool undo) const noexcept {
    const std::uint32_t up = undo ? 0xFFFF'FFFFU : 1U;
    for (std::uint32_t i = 0; i < block_.entry.changed; ++i) {
      const std::uint32_t is_down = signs_[i / 32] >> (i % 32) & 1;
      std::uint16_t& element = at(i, positions_[i]);
      element = static_cast<std::uint16_t>(element + (is_down != 0 ? 0U - up : up));
    }
    if (block_.entry.exceptions != 0) mend(at, up);
  }

 private:
  template <typename At>
  void mend(At at, std::uint32_t up) const noexcept {
    const std::uint32_t* const ranks = signs_ + words_of_bits(block_.entry.changed);
    const EliasFanoShape shape{block_.entry.changed, block_.entry.exceptions};
    EliasFanoReader reader{ranks, block_.entry.changed, block_.entry.exceptions};
    BitReader values{ranks + shape.words()};
    for (std::uint32_t i = 0; i < block_.entry.exceptions; ++i) {
      const std::uint32_t rank = reader.next();
      std::uint16_t& element = at(rank, positions_[rank]);
      element = static_cast<std::uint16_t>((element - up) ^ values.take(16));
    }
  }

  BlockView block_;
  const std::uint16_t* positions_;
  const std::uint32_t* signs_{nullptr};
};

}  // namespace rose::transfer
