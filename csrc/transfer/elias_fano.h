// Ascending positions in few bits. docs/protocol.md, "Elias-Fano".
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "transfer/delta.h"
#include "transfer/set_writer.h"
#include "transfer/simd.h"

namespace rose::transfer {

// Reads fields in order. Never reads a word behind the last field taken.
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

// Writes `words` words in which the bits at all places are set; returns the end of the words. `isa`
// must be at most best_isa().
inline std::uint32_t* write_set(Isa isa, const SetPlaces& set, std::uint32_t words,
                                std::uint32_t* out) noexcept {
  SetWriter writer{out};
  write_places(isa, set, writer);
  return writer.finish(out + words);
}

// Packs the low `width` <= 16 bits of four numbers.
inline std::uint64_t lows_of_four(const std::uint16_t* numbers, std::uint32_t width) noexcept {
  constexpr std::uint64_t kEach = 0x0001'0001'0001'0001;
  constexpr std::uint64_t kEachPair = 0x0000'0001'0000'0001;
  std::uint64_t four = 0;
  std::memcpy(&four, numbers, sizeof four);
  four &= ((std::uint64_t{1} << width) - 1) * kEach;
  // First the numbers of each pair are joined, then the two pairs.
  four = (four | four >> (16 - width)) & ((std::uint64_t{1} << 2 * width) - 1) * kEachPair;
  return (four & ~std::uint32_t{0}) | four >> 32 << 2 * width;
}

// Writes `width` >= 1 low bits of each of `count` numbers; returns the end of the words.
inline std::uint32_t* write_lows(const std::uint16_t* numbers, std::uint32_t count,
                                 std::uint32_t width, std::uint32_t* out) noexcept {
  std::uint32_t* const end = out + words_of_bits(count * width);
  std::uint32_t i = 0;
  // Eight fields fill exactly `width` bytes, so no store waits for the previous store; later stores
  // overwrite the excess bytes. The loop writes 32 fields at once, because these fill whole words.
  if (8 * width <= 64) {
    auto* bytes = reinterpret_cast<unsigned char*>(out);
    for (; i + 96 <= count; i += 32) {
      for (std::uint32_t k = 0; k < 32; k += 8, bytes += width) {
        const std::uint64_t eight = lows_of_four(numbers + i + k, width) |
                                    lows_of_four(numbers + i + k + 4, width) << 4 * width;
        std::memcpy(bytes, &eight, sizeof eight);
      }
    }
    out += i / 32 * width;
  }
  BitWriter bits{out};
  const std::uint32_t mask = (1U << width) - 1;
  for (; i + 2 <= count; i += 2) {
    bits.put((numbers[i] & mask) | (numbers[i + 1] & mask) << width, 2 * width);
  }
  if (i < count) bits.put(numbers[i] & mask, width);
  static_cast<void>(bits.finish());
  return end;
}

// Writes `count` >= 1 ascending positions below `universe`; returns the end of the words.
inline std::uint32_t* write_elias_fano(Isa isa, const std::uint16_t* positions, std::uint32_t count,
                                       std::uint32_t universe, std::uint32_t* out) noexcept {
  const EliasFanoShape shape{universe, count};
  const SetPlaces set{.numbers = positions, .count = count, .shift = shape.low_bits, .step = 1};
  out = write_set(isa, set, shape.high_words, out);
  return shape.low_bits == 0 ? out : write_lows(positions, count, shape.low_bits, out);
}

// Reads positions from words whose high section is known to have `count` bits set.
class EliasFanoReader {
 public:
  EliasFanoReader(const std::uint32_t* words, std::uint32_t universe, std::uint32_t count) noexcept
      : EliasFanoReader{words, EliasFanoShape{universe, count}} {}

  // Returns the next position. May be called `count` times.
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
