// Room for a payload of unknown length that several threads write.
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
// The worst case is allocated in one piece, which uses only address space. But the kernel clears
// newly touched memory page by page, and at 1 % changes that takes as long as the encoding. So a
// part begins in a small room of its own, which the allocator retains when it is freed, and
// continues in the large room once that is full.
class PayloadPart {
 public:
  // `far` has room for up to `words_max` words, and outlives the part.
  static Result<PayloadPart> create(std::uint32_t* far, std::uint64_t words_max) noexcept;

  // Room for at most `words` further words; they count after they are added.
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

// The room of all parts. A part whose earlier blocks are all RAW begins in the large room.
class PayloadRoom {
 public:
  // For `blocks` of at most `block_words` each, and `words_max` in all, in parts with the borders
  // of part_border().
  static Result<PayloadRoom> create(std::uint64_t blocks, std::uint64_t block_words,
                                    std::uint64_t words_max, std::uint32_t parts) noexcept;

  PayloadPart& part(std::uint32_t at) noexcept { return parts_[at]; }
  // Joins the words of all parts, in order, and consumes the room. The large room becomes the
  // payload if a part used it, or if there is no memory for another: this cannot fail.
  Buffer<std::uint32_t> join() noexcept;

 private:
  explicit PayloadRoom(Buffer<std::uint32_t> far) noexcept : far_{std::move(far)} {}

  Buffer<std::uint32_t> far_;
  std::vector<PayloadPart> parts_;
};

}  // namespace rose::transfer
