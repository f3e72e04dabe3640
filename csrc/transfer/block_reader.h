// Reads the blocks of a delta that check_delta() found well formed.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "transfer/buffer.h"
#include "transfer/delta.h"

namespace rose::transfer {

// One block of a delta: its position and its words.
struct BlockView {
  std::uint64_t first{0};  // index of its first element
  std::uint32_t elements{0};
  Entry entry;
  const std::uint32_t* words{nullptr};
};

// The blocks `first` to `last` - 1 of a delta.
struct BlockRange {
  std::uint64_t first{0};
  std::uint64_t last{~std::uint64_t{0}};
};

// Calls visit(BlockView) for every existing block of the range, in order.
template <typename Visit>
void for_each_block(const DeltaView& delta, BlockRange range, Visit visit) noexcept {
  const std::uint32_t* words = delta.payload.data();
  for (std::uint64_t block = 0; block < std::min<std::uint64_t>(range.last, delta.entries.size());
       ++block) {
    const Entry entry = Entry::decode(delta.entries[block]);
    if (block >= range.first) {
      const std::uint64_t first = block * delta.block_elements;
      visit(BlockView{.first = first,
                      .elements = elements_of_block(delta.count, first, delta.block_elements),
                      .entry = entry,
                      .words = words});
    }
    words += entry.words;
  }
}

template <typename Visit>
void for_each_block(const DeltaView& delta, Visit visit) noexcept {
  for_each_block(delta, BlockRange{}, visit);
}

// Pointers to the sections behind the positions of a GAP or BITMAP block; null if a section is
// missing.
struct BodySections {
  const std::uint32_t* signs{nullptr};
  std::uint32_t magnitude_bits{0};
  std::uint32_t large{0};
  const std::uint32_t* ranks{nullptr};  // null also when all changes are listed
  const std::uint32_t* magnitudes{nullptr};
  const std::uint32_t* large_ranks{nullptr};
  const std::uint32_t* large_values{nullptr};

  BodySections(const BlockView& block) noexcept;
};

// Reads the changes of a block. Both outputs need room for `changed` + kChangesSlack values. A
// STRAT block is not allowed.
template <ElementBits T>
BlockChanges<T> read_changes(const BlockView& block, std::uint16_t* positions,
                             T* differences) noexcept;

// Room for the results of read_changes(), reused for every block.
template <ElementBits T>
class ChangesRoom {
 public:
  static Result<ChangesRoom> create(std::size_t elements) noexcept {
    ChangesRoom room;
    auto positions = Buffer<std::uint16_t>::create(elements + kChangesSlack);
    if (!positions.ok()) return positions.status();
    auto differences = Buffer<T>::create(elements + kChangesSlack);
    if (!differences.ok()) return differences.status();
    room.positions_ = positions.take();
    room.differences_ = differences.take();
    return room;
  }

  std::uint16_t* positions() const noexcept { return positions_.data(); }
  T* differences() const noexcept { return differences_.data(); }
  BlockChanges<T> read(const BlockView& block) const noexcept {
    return read_changes(block, positions(), differences());
  }

 private:
  Buffer<std::uint16_t> positions_;
  Buffer<T> differences_;
};

}  // namespace rose::transfer
