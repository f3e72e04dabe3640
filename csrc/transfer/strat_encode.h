// Writes STRAT blocks. docs/protocol.md, "STRAT".
#pragma once

#include <cstdint>

#include "base/status.h"
#include "transfer/buffer.h"
#include "transfer/changes.h"
#include "transfer/class_planes.h"
#include "transfer/strat_class.h"

namespace rose::transfer {

// Encodes one block after the other, with room that is used again. One thread uses it.
template <ElementBits T>
class StratEncoder {
 public:
  // For blocks of at most `elements`. `isa` must be at most best_isa().
  static Result<StratEncoder> create(std::uint32_t elements, const ClassRule& rule,
                                     Isa isa) noexcept;

  // Encodes a block that changes something, if that takes fewer than `words_limit` words, and fewer
  // than RAW; returns how many, or 0. `weights` are its elements: as they were, or, if `is_after`,
  // as they become. Writes no word behind those that it returns.
  std::uint32_t encode(const BlockChanges<T>& changes, const T* weights, bool is_after,
                       std::uint32_t words_limit, std::uint32_t* out) noexcept;

 private:
  StratEncoder() noexcept = default;

  void classify(const BlockChanges<T>& changes, const T* weights, bool is_after) noexcept;
  void keep_old_classes(const BlockChanges<T>& changes, const T* weights) noexcept;
  void group(const BlockChanges<T>& changes) noexcept;
  void list(ClassBody& body, std::uint32_t of_class) noexcept;
  // A size of 1 is listed only where all are: then the least that is has the magnitude 0.
  std::uint32_t least_size(std::uint32_t of_class) const noexcept {
    return rule_.is_all(of_class) ? 1 : 2;
  }
  std::uint32_t magnitude_of(const ClassBody& body, std::uint32_t i,
                             std::uint32_t least) const noexcept;
  std::uint32_t bits() const noexcept;
  void write_counts(StreamWriter& stream) const noexcept;
  void write_body(StreamWriter& stream, std::uint32_t of_class) noexcept;
  void write_sizes(StreamWriter& stream, std::uint32_t of_class) noexcept;

  ClassRule rule_;
  Isa isa_{Isa::kPortable};
  ClassBodies bodies_{};
  Buffer<ClassPlanes> planes_;
  Buffer<GroupStarts> starts_;
  Buffer<std::uint32_t> words_;    // of the block, and those that the writer may write behind them
  Buffer<std::uint8_t> classes_;   // of each change, in the order of positions
  Buffer<std::uint16_t> ranks_;    // the same
  Buffer<std::uint16_t> grouped_;  // ranks, class by class
  Buffer<T> differences_;          // beside them
  Buffer<std::uint16_t> listed_;   // beside them: which of the changes of their class
  Buffer<std::uint16_t> large_;    // of one class: which of what is listed
};

}  // namespace rose::transfer
