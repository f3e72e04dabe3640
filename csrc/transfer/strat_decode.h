// Reads STRAT blocks without trusting them. docs/protocol.md, "STRAT".
#pragma once

#include <cstdint>

#include "base/status.h"
#include "transfer/buffer.h"
#include "transfer/changes.h"
#include "transfer/class_planes.h"
#include "transfer/strat_class.h"

namespace rose::transfer {

// One received STRAT block.
struct StratWords {
  const std::uint32_t* words{nullptr};
  std::uint32_t count{0};
  std::uint32_t changed{0};  // number of changes in its entry
};

// Decodes one block after another in reused memory. For one thread.
template <ElementBits T>
class StratDecoder {
 public:
  // The reason to refuse a block, as the end of a sentence; null if the block is accepted.
  using Fault = const char*;

  // `elements` is the size of the largest block. `isa` must be at most best_isa().
  static Result<StratDecoder> create(std::uint32_t elements, const ClassRule& rule,
                                     Isa isa) noexcept;

  // Fills `changes`, which is valid until the next call, and undefined after a fault. `base` points
  // to the `elements` elements of the block before the changes.
  Fault decode(const StratWords& block, const T* base, std::uint32_t elements,
               BlockChanges<T>& changes) noexcept;

 private:
  StratDecoder() noexcept = default;

  Fault check_sizes(const StratWords& block, std::uint32_t elements) const noexcept;
  Fault read_counts(StreamReader& stream, std::uint32_t changed) noexcept;
  Fault check_end(const StreamReader& stream) const noexcept;
  Fault read_body(StreamReader& stream, std::uint32_t of_class) noexcept;
  Fault read_magnitudes(StreamReader& stream, std::uint32_t of_class) noexcept;
  Fault set_sizes(StreamReader& signs, std::uint32_t of_class) noexcept;

  ClassRule rule_;
  Isa isa_{Isa::kPortable};
  ClassBodies bodies_{};
  std::uint32_t elements_max_{0};
  Buffer<ClassPlanes> planes_;
  Buffer<std::uint32_t> words_;       // words of the block, and padding that StreamReader reads
  Buffer<std::uint16_t> ranks_;       // ranks of the changes, class by class
  Buffer<T> grouped_;                 // differences in the order of ranks_
  Buffer<std::uint16_t> positions_;   // ascending
  Buffer<std::uint16_t> places_;      // for each position, its index in ranks_
  Buffer<T> differences_;             // in the order of positions_
  Buffer<std::uint16_t> listed_;      // of one class: indices of listed changes
  Buffer<std::uint16_t> large_;       // of one class: indices of large magnitudes
  Buffer<std::uint32_t> magnitudes_;  // of one class: magnitudes of listed changes
};

}  // namespace rose::transfer
