// Memory for a payload of unknown length that several threads write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "transfer/buffer.h"

namespace rose::transfer {

// The part of a payload that one thread writes.
//
// PayloadRoom allocates memory for the largest possible payload in one piece (the large room),
// which uses only address space. But the kernel clears newly touched memory page by page, which
// takes as long as the encoding if 1 % of the elements changed. So a part begins in a small room of
// its own, whose memory the allocator reuses. When the small room is full, the part moves to the
// large room.
class PayloadPart {
 public:
  // `far` is the place of this part in the large room: `words_max` words that outlive the part.
  static Result<PayloadPart> create(std::uint32_t* far, std::uint64_t words_max) noexcept;

  // Returns room for `words` further words. Call add() after writing them.
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

// The room of all parts. Within the large room, a part begins where it would begin if all earlier
// blocks were RAW.
class PayloadRoom {
 public:
  // For `blocks` blocks of at most `block_words` words each, and `words_max` words in total.
  // part_border() splits the blocks into `parts` parts.
  static Result<PayloadRoom> create(std::uint64_t blocks, std::uint64_t block_words,
                                    std::uint64_t words_max, std::uint32_t parts) noexcept;

  PayloadPart& part(std::uint32_t at) noexcept { return parts_[at]; }
  // Joins the words of all parts, in order, and consumes the room. Cannot fail: the large room
  // becomes the payload if a part used it, or if no other memory can be allocated.
  Buffer<std::uint32_t> join() noexcept;

 private:
  explicit PayloadRoom(Buffer<std::uint32_t> far) noexcept : far_{std::move(far)} {}

  Buffer<std::uint32_t> far_;
  std::vector<PayloadPart> parts_;
};

}  // namespace rose::transfer
