#include "transfer/payload_room.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "transfer/parallel.h"

namespace rose::transfer {

namespace {

// 4 MiB: small enough that allocators reuse freed memory instead of asking the kernel each time.
constexpr std::uint64_t kNearWords = 1 << 20;

void move_words(std::span<const std::uint32_t> words, std::uint32_t* to) noexcept {
  if (words.data() != to && !words.empty()) std::memmove(to, words.data(), words.size_bytes());
}

}  // namespace

Result<PayloadPart> PayloadPart::create(std::uint32_t* far, std::uint64_t words_max) noexcept {
  auto near = Buffer<std::uint32_t>::create(std::min(words_max, kNearWords));
  if (!near.ok()) return near.status();
  return PayloadPart{far, near.take()};
}

std::uint32_t* PayloadPart::room(std::uint32_t words) noexcept {
  if (!is_far_ && words > near_.size() - words_) {
    move_words({near_.data(), words_}, far_);
    is_far_ = true;
  }
  return (is_far_ ? far_ : near_.data()) + words_;
}

Result<PayloadRoom> PayloadRoom::create(std::uint64_t blocks, std::uint64_t block_words,
                                        std::uint64_t words_max, std::uint32_t parts) noexcept {
  auto far = Buffer<std::uint32_t>::create(words_max);
  if (!far.ok()) return far.status();
  PayloadRoom room{far.take()};
  for (std::uint32_t at = 0; at < parts; ++at) {
    const std::uint64_t first = block_words * part_border(blocks, at, parts);
    const std::uint64_t last =
        std::min(block_words * part_border(blocks, at + 1, parts), words_max);
    auto part = PayloadPart::create(room.far_.data() + first, last - first);
    if (!part.ok()) return part.status();
    room.parts_.push_back(part.take());
  }
  return room;
}

Buffer<std::uint32_t> PayloadRoom::join() noexcept {
  std::size_t total = 0;
  bool is_near = true;
  for (const PayloadPart& part : parts_) {
    total += part.words().size();
    is_near = is_near && !part.is_far();
  }
  auto made = is_near ? Buffer<std::uint32_t>::create(total) : Buffer<std::uint32_t>{};
  Buffer<std::uint32_t> joined = is_near && made.ok() ? made.take() : std::move(far_);
  std::uint32_t* to = joined.data();
  for (const PayloadPart& part : parts_) {
    move_words(part.words(), to);
    to += part.words().size();
  }
  joined.shrink(total);
  return joined;
}

}  // namespace rose::transfer
