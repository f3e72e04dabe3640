// Ascending positions in few bits, and the fields beside them. docs/protocol.md, "Elias-Fano".
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "transfer/delta.h"

namespace rose::transfer {

// Appends fields of at most 32 bits, lowest bit first, from a word border on. Needs room for
// words_of_bits(all bits) words, and writes each of them once.
class BitWriter {
 public:
  explicit BitWriter(std::uint32_t* out) noexcept : out_{out} {}

  void put(std::uint32_t value, std::uint32_t width) noexcept {
    pending_ |= std::uint64_t{value} << pending_bits_;
    pending_bits_ += width;
    if (pending_bits_ >= 32) {
      *out_++ = static_cast<std::uint32_t>(pending_);
      pending_ >>= 32;
      pending_bits_ -= 32;
    }
  }
  // Writes the last word, if it is not full; its unused bits are 0. Returns where the words end.
  std::uint32_t* finish() noexcept {
    if (pending_bits_ != 0) *out_++ = static_cast<std::uint32_t>(pending_);
    return out_;
  }

 private:
  std::uint32_t* out_;
  std::uint64_t pending_{0};
  std::uint32_t pending_bits_{0};
};

// Takes fields off again; reads no word behind the one that holds the last field taken.
class BitReader {
 public:
  explicit BitReader(const std::uint32_t* at) noexcept : at_{at} {}

  std::uint32_t take(std::uint32_t width) noexcept {
    if (ready_bits_ < width) {
      ready_ |= std::uint64_t{*at_++} << ready_bits_;
      ready_bits_ += 32;
    }
    const auto value = static_cast<std::uint32_t>(ready_ & ((std::uint64_t{1} << width) - 1));
    ready_ >>= width;
    ready_bits_ -= width;
    return value;
  }

 private:
  const std::uint32_t* at_;
  std::uint64_t ready_{0};
  std::uint32_t ready_bits_{0};
};

// Writes the bits at ascending places of a section of `words`, and 0 elsewhere.
class BitSetter {
 public:
  BitSetter(std::uint32_t* out, std::uint32_t words) noexcept : out_{out} {
    std::fill_n(out, words, 0U);
  }

  void set(std::uint32_t bit) noexcept {
    // Held beside the memory, so that no bit waits for the one before to be stored.
    const std::uint32_t word = bit / 32;
    // A mask, because a branch on whether the word is another one would often guess wrong.
    held_ = (held_ & (0U - static_cast<std::uint32_t>(word == word_))) | 1U << bit % 32;
    word_ = word;
    out_[word] = held_;
  }

 private:
  std::uint32_t* out_;
  std::uint32_t word_{0};
  std::uint32_t held_{0};
};

// Writes `count` >= 1 ascending positions below `universe`; returns where the words end.
inline std::uint32_t* write_elias_fano(const std::uint16_t* positions, std::uint32_t count,
                                       std::uint32_t universe, std::uint32_t* out) noexcept {
  const EliasFanoShape shape{universe, count};
  const std::uint32_t low_bits = shape.low_bits;
  BitSetter high{out, shape.high_words};
  for (std::uint32_t i = 0; i < count; ++i) high.set((positions[i] >> low_bits) + i);
  BitWriter low{out + shape.high_words};
  const std::uint32_t low_mask = (1U << low_bits) - 1;
  std::uint32_t i = 0;
  // In pairs, of at most 30 bits: half the steps.
  for (; i + 2 <= count; i += 2) {
    low.put((positions[i] & low_mask) | (positions[i + 1] & low_mask) << low_bits, 2 * low_bits);
  }
  if (i < count) low.put(positions[i] & low_mask, low_bits);
  return low.finish();
}

// Takes positions off words whose high section is known to have `count` bits set.
class EliasFanoReader {
 public:
  EliasFanoReader(const std::uint32_t* words, std::uint32_t universe, std::uint32_t count) noexcept
      : EliasFanoReader{words, EliasFanoShape{universe, count}} {}

  // At most `count` times.
  std::uint32_t next() noexcept {
    while (bits_ == 0) {
      bits_ = *high_++;
      base_ += 32;
    }
    const std::uint32_t bit = base_ + static_cast<std::uint32_t>(std::countr_zero(bits_));
    bits_ &= bits_ - 1;
    return (bit - taken_++) << low_bits_ | low_.take(low_bits_);
  }

 private:
  EliasFanoReader(const std::uint32_t* words, EliasFanoShape shape) noexcept
      : low_bits_{shape.low_bits}, high_{words}, low_{words + shape.high_words} {}

  std::uint32_t low_bits_;
  std::uint32_t taken_{0};
  std::uint32_t bits_{0};
  std::uint32_t base_{0U - 32U};
  const std::uint32_t* high_;
  BitReader low_;
};

}  // namespace rose::transfer
