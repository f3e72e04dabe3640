// Writes STRAT blocks. docs/protocol.md, "STRAT".
#pragma once

#include <cstdint>

#include "base/status.h"
#include "transfer/buffer.h"
#include "transfer/changes.h"
#include "transfer/class_planes.h"
#include "transfer/strat_class.h"

namespace rose::transfer {

// Encodes one block after another in reused memory. For one thread.
template <ElementBits T>
class StratEncoder {
 public:
  // `elements` is the size of the largest block. `isa` must be at most best_isa().
  static Result<StratEncoder> create(std::uint32_t elements, const ClassRule& rule,
                                     Isa isa) noexcept;

  // Encodes a block with changes, if the encoding takes fewer than `words_limit` words, and fewer
  // than RAW. Returns the number of words that it wrote to `out`; 0 if it wrote nothing. `weights`
  // are the block's elements before the changes, or after them if `is_after`.
  std::uint32_t encode(const BlockChanges<T>& changes, const T* weights, bool is_after,
                       std::uint32_t words_limit, std::uint32_t* out) noexcept;

 private:
  StratEncoder() noexcept = default;

  void classify(const BlockChanges<T>& changes, const T* weights, bool is_after) noexcept;
  void keep_old_classes(const BlockChanges<T>& changes, const T* weights) noexcept;
  void group(const BlockChanges<T>& changes) noexcept;
  void list(ClassBody& body, std::uint32_t of_class) noexcept;
  // The smallest size that a class lists; its magnitude is 0. Size 1 is listed only in a class that
  // lists all changes.
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
  Buffer<std::uint32_t> words_;    // words of the block, and the slack of StreamWriter
  Buffer<std::uint8_t> classes_;   // class of each change, in the order of positions
  Buffer<std::uint16_t> ranks_;    // rank of each change in its class, in the same order
  Buffer<std::uint16_t> grouped_;  // ranks, grouped by class
  Buffer<T> differences_;          // in the order of grouped_
  Buffer<std::uint16_t> listed_;   // for each class: indices of its listed changes
  Buffer<std::uint16_t> large_;    // of one class: indices of large magnitudes
};

}  // namespace rose::transfer
