// Finds the changes of a block and applies them to the shadow: the part of a pack that reads every
// element.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "transfer/block_reader.h"
#include "transfer/delta_pack.h"

namespace rose::transfer {

// The arrays of one pack.
template <ElementBits T>
struct Versions {
  Box<const T> fresh;
  Box<T> shadow;
};

// Finds the changes of blocks, in any order, and adds up the digests of their elements. For one
// thread.
template <ElementBits T>
class ChangesFinder {
 public:
  // `elements` is the size of the largest block. `options` must outlive the finder.
  static Result<ChangesFinder> create(const Versions<T>& versions, const PackOptions& options,
                                      std::size_t elements) noexcept;

  // Returns the changes of `elements` elements from element `first` on; valid until the next call.
  BlockChanges<T> find(std::uint64_t first, std::uint32_t elements) noexcept;

  // Digest of the shadow's elements so far, after their changes. Meaningless if the options have a
  // base_digest.
  const Digest& digest() const noexcept { return digest_; }
  // Digest after the changes minus digest before them. Always valid.
  const Digest& moved() const noexcept { return moved_; }

 private:
  // Elements per tile: two arrays stay in the first-level cache while they are compared and
  // updated. They take less than half of the cache, to leave room for prefetched lines.
  static constexpr std::uint32_t kTile = 4096 / sizeof(T);

  static constexpr std::uint32_t kInWord = 8 / sizeof(T);
  // With more than one change in this many elements, it is faster to digest all words of a tile
  // than only the changed ones.
  static constexpr std::uint32_t kManyInWord = 16;

  struct Tile {
    std::uint64_t first{0};
    std::uint32_t elements{0};
    std::uint32_t base{0};    // position of its first element in the block
    const T* fresh{nullptr};  // read by find_differing() or find_and_add() only, into seen_
    T* shadow{nullptr};
  };

  ChangesFinder(const Versions<T>& versions, const PackOptions& options) noexcept
      : versions_{versions}, options_{&options} {}

  bool sends_all() const noexcept { return options_->threshold == 0 && !has_ages(); }
  bool has_ages() const noexcept { return options_->ages.counts.data != nullptr; }
  std::uint32_t find_differing(const Tile& tile, std::uint16_t* found) noexcept;
  std::uint32_t find_all(const Tile& tile, std::uint16_t* found) noexcept;
  void add_all(const Tile& tile, const T* elements, Digest& to, int sign) const noexcept;
  void take_words(const Tile& tile, std::uint32_t count) noexcept;
  void note_differences(const Tile& tile, std::uint32_t count) noexcept;
  std::uint32_t find_some(const Tile& tile, std::uint16_t* found) noexcept;
  std::uint32_t keep_sent(const Tile& tile, std::uint16_t* found, std::uint32_t count) noexcept;
  void take(const Tile& tile, std::uint32_t count) noexcept;
  void move_box(const Tile& tile, std::uint32_t count) noexcept;

  Versions<T> versions_;
  const PackOptions* options_;
  ChangesRoom<T> room_;
  // Copies of a tile: of the new elements, of a shadow that is not a row, and of the ages.
  Buffer<T> seen_room_;
  T* seen_{nullptr};
  Buffer<T> shadow_tile_;
  Buffer<std::uint8_t> ages_tile_;
  Buffer<std::uint8_t> left_ages_;
  Buffer<std::uint16_t> left_;
  std::uint32_t changed_{0};
  Digest digest_;
  Digest moved_;
};

}  // namespace rose::transfer
