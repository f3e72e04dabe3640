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
  std::uint32_t changed{0};  // by its entry
};

// Decodes one block after another in reused room. For one thread.
template <ElementBits T>
class StratDecoder {
 public:
  // Why a block is refused, as the end of a sentence; null if it is not.
  using Fault = const char*;

  // For blocks of at most `elements`. `isa` must be at most best_isa().
  static Result<StratDecoder> create(std::uint32_t elements, const ClassRule& rule,
                                     Isa isa) noexcept;

  // Fills `changes`, which is valid until the next call, and undefined after a fault. `base` are
  // the block's `elements` before the change.
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
  Buffer<std::uint32_t> words_;       // the block's, and those that StreamReader reads behind them
  Buffer<std::uint16_t> ranks_;       // class by class
  Buffer<T> grouped_;                 // their differences
  Buffer<std::uint16_t> positions_;   // ascending
  Buffer<std::uint16_t> places_;      // for each, its index among the ranks
  Buffer<T> differences_;             // for each position
  Buffer<std::uint16_t> listed_;      // of one class: indices of listed changes
  Buffer<std::uint16_t> large_;       // of one class: indices of large ones among the listed
  Buffer<std::uint32_t> magnitudes_;  // of one class
};

}  // namespace rose::transfer
