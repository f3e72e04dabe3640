// Room for a payload that several threads write, and of which nobody knows how long it becomes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "transfer/buffer.h"

namespace rose::transfer {

// One thread's share of a payload.
//
// The worst case is asked for in one piece, which costs address space only. But memory that is
// touched for the first time is cleared by the kernel page by page, and at 1 % that takes as long
// as to encode what goes there. So a part begins in room of its own, small enough that the
// allocator keeps it when it is given back, and goes on in the large room where that is too small.
class PayloadPart {
 public:
  // `far` has room for the `words_max` words that there can be, and outlives the part.
  static Result<PayloadPart> create(std::uint32_t* far, std::uint64_t words_max) noexcept;

  // Where the next words go, at most `words` of them; they count once they are added.
  std::uint32_t* room(std::uint32_t words) noexcept;
  void add(std::uint32_t words) noexcept { words_ += words; }

  bool is_far() const noexcept { return is_far_; }
  std::span<const std::uint32_t> words() const noexcept {
    return {is_far_ ? far_ : near_.data(), words_};
  }

 private:
  PayloadPart(std::uint32_t* far, Buffer<std::uint32_t> near) noexcept
      : far_{far}, near_{std::move(near)} {}

  std::uint32_t* far_;
  Buffer<std::uint32_t> near_;
  std::size_t words_{0};
  bool is_far_{false};
};

// The room of all parts. A part begins in the large room where all blocks before it are RAW.
class PayloadRoom {
 public:
  // For `blocks` of at most `block_words` each, and `words_max` in all, in so many parts with
  // borders as part_border() has them.
  static Result<PayloadRoom> create(std::uint64_t blocks, std::uint64_t block_words,
                                    std::uint64_t words_max, std::uint32_t parts) noexcept;

  PayloadPart& part(std::uint32_t at) noexcept { return parts_[at]; }
  // The words of all parts, in order; the room is used up. The large room becomes the payload where
  // a part needed it, or where there is no memory for another: this cannot fail.
  Buffer<std::uint32_t> join() noexcept;

 private:
  explicit PayloadRoom(Buffer<std::uint32_t> far) noexcept : far_{std::move(far)} {}

  Buffer<std::uint32_t> far_;
  std::vector<PayloadPart> parts_;
};

}  // namespace rose::transfer
