// A bit stream whose fields may cross word boundaries, and the codes in it. docs/protocol.md,
// "STRAT".
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "transfer/delta.h"

namespace rose::transfer {

constexpr std::uint32_t gamma_bits(std::uint32_t number) noexcept {
  return 2 * static_cast<std::uint32_t>(std::bit_width(number)) - 1;
}

// Elias-Fano of `count` numbers below `universe`, 1 <= count <= universe <= 65,536.
struct StreamShape {
  std::uint32_t low;   // number of low bits that are stored for each number, as they are
  std::uint32_t high;  // size of the high section, in bits
  std::uint32_t bits;  // size of both sections, in bits

  constexpr StreamShape(std::uint32_t universe, std::uint32_t count) noexcept
      : low{static_cast<std::uint32_t>(std::bit_width(universe / count)) - 1},
        high{count + ((universe - 1) >> low)},
        bits{high + count * low} {}
};

// True if a class with `universe` elements and `count` changes is written as a bitmap, which is
// then shorter than Elias-Fano.
constexpr bool is_bitmap(std::uint32_t universe, std::uint32_t count) noexcept {
  return universe < 4 * count;
}

// Appends fields without testing whether a word is full, because that branch is unpredictable: each
// call stores eight bytes, and the next call stores the incomplete ones again. So the output needs
// room for all its words plus kSlackWords. The unused bits of the last word are 0.
class StreamWriter {
 public:
  static constexpr std::size_t kSlackWords = 2;

  explicit StreamWriter(std::uint32_t* out) noexcept
      : out_{reinterpret_cast<unsigned char*>(out)} {}

  // Appends a field of `width` <= 32 bits.
  void put(std::uint64_t value, std::uint32_t width) noexcept {
    pending_ |= value << pending_bits_;
    pending_bits_ += width;
    std::memcpy(out_, &pending_, sizeof pending_);
    out_ += pending_bits_ / 8;
    pending_ >>= pending_bits_ & ~7U;
    pending_bits_ %= 8;
  }

  void put_gamma(std::uint32_t number) noexcept {
    const auto low = static_cast<std::uint32_t>(std::bit_width(number)) - 1;
    put_unary(low);
    put(number & ((1U << low) - 1), low);
  }

  void put_elias_fano(const std::uint16_t* numbers, std::uint32_t count,
                      std::uint32_t universe) noexcept {
    const StreamShape shape{universe, count};
    put_set(shape.high, count,
            [&](std::uint32_t i) noexcept { return (std::uint32_t{numbers[i]} >> shape.low) + i; });
    if (shape.low == 0) return;
    const std::uint32_t mask = (1U << shape.low) - 1;
    std::uint32_t i = 0;
    // Pairs of at most 30 bits halve the number of steps.
    for (; i + 2 <= count; i += 2) {
      put((numbers[i] & mask) | (numbers[i + 1] & mask) << shape.low, 2 * shape.low);
    }
    if (i < count) put(numbers[i] & mask, shape.low);
  }

  // Appends `count` >= 1 ascending numbers below `universe`, each as a set bit.
  void put_bitmap(const std::uint16_t* numbers, std::uint32_t count,
                  std::uint32_t universe) noexcept {
    put_set(universe, count, [&](std::uint32_t i) noexcept { return std::uint32_t{numbers[i]}; });
  }

 private:
  void put_zeros(std::uint32_t count) noexcept {
    for (; count > 32; count -= 32) put(0, 32);
    put(0, count);
  }
  // Appends `zeros` zeros, then a one.
  void put_unary(std::uint32_t zeros) noexcept {
    if (zeros > 31) {
      put_zeros(zeros);
      zeros = 0;
    }
    put(std::uint64_t{1} << zeros, zeros + 1);
  }

  // Appends `size` bits. The bits at place_of(0) to place_of(count - 1), which ascend, are set.
  template <typename PlaceOf>
  void put_set(std::uint32_t size, std::uint32_t count, const PlaceOf& place_of) noexcept {
    const std::uint32_t end = pending_bits_ + size;
    std::memset(out_, 0, end / 8 + 1);
    std::memcpy(out_, &pending_, sizeof pending_);
    // Kept in a register, so that no bit waits for the store of the previous bit.
    std::uint64_t held = pending_;
    std::uint32_t last = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint32_t bit = pending_bits_ + place_of(i);
      const std::uint32_t word = bit / 64;
      // A mask instead of a branch, because a change of word is often mispredicted.
      held = (held & (std::uint64_t{0} - (word == last ? 1 : 0))) | std::uint64_t{1} << bit % 64;
      last = word;
      std::memcpy(out_ + sizeof held * word, &held, sizeof held);
    }
    out_ += end / 8;
    pending_bits_ = end % 8;
    pending_ = *out_;
  }

  unsigned char* out_;
  std::uint64_t pending_{0};
  std::uint32_t pending_bits_{0};
};

// Reads at any bit offset. The caller checks that the bits exist. Up to two words behind the stream
// are read, too.
class StreamReader {
 public:
  static constexpr std::size_t kPaddingWords = 2;

  StreamReader(const std::uint32_t* words, std::uint32_t count) noexcept
      : bytes_{reinterpret_cast<const unsigned char*>(words)}, bits_{32 * count} {}

  std::uint32_t at() const noexcept { return at_; }
  std::uint32_t bits() const noexcept { return bits_; }
  void skip(std::uint32_t count) noexcept { at_ += count; }

  // The field of `width` <= 32 bits at `at`.
  std::uint32_t field(std::uint32_t at, std::uint32_t width) const noexcept {
    return static_cast<std::uint32_t>(window(at) & ((std::uint64_t{1} << width) - 1));
  }
  std::uint32_t take(std::uint32_t width) noexcept {
    const std::uint32_t value = field(at_, width);
    at_ += width;
    return value;
  }

  // Takes a gamma code. False, with nothing taken, if the next bits are not the code of a number
  // below 2^17. Safe at any offset.
  bool take_gamma(std::uint32_t& number) noexcept {
    constexpr std::uint32_t kLowMax = 16;
    if (at_ >= bits_) return false;
    const std::uint64_t ahead = window(at_);
    const auto low = static_cast<std::uint32_t>(std::countr_zero(ahead | std::uint64_t{1} << 32));
    if (low > kLowMax || 2 * low + 1 > bits_ - at_) return false;
    const std::uint32_t mask = (1U << low) - 1;
    number = 1U << low | (static_cast<std::uint32_t>(ahead >> (low + 1)) & mask);
    at_ += 2 * low + 1;
    return true;
  }

  // Takes `count` numbers. False if the high section does not have `count` bits set, or the numbers
  // do not ascend below `universe`; then the output is undefined.
  bool take_elias_fano(std::uint32_t universe, std::uint32_t count, std::uint16_t* out) noexcept {
    const StreamShape shape{universe, count};
    const std::uint32_t lows = at_ + shape.high;
    std::uint32_t found = 0;
    std::uint32_t least = 0;
    bool is_ascending = true;
    for (std::uint32_t done = 0; done < shape.high; done += 32) {
      std::uint32_t ahead = field(at_ + done, std::min(32U, shape.high - done));
      for (; ahead != 0; ahead &= ahead - 1) {
        if (found == count) return false;
        const std::uint32_t top =
            done + static_cast<std::uint32_t>(std::countr_zero(ahead)) - found;
        const std::uint32_t number = top << shape.low | field(lows + found * shape.low, shape.low);
        is_ascending &= number >= least && number < universe;
        least = number + 1;
        out[found++] = static_cast<std::uint16_t>(number);
      }
    }
    at_ += shape.bits;
    return found == count && is_ascending;
  }

  // Takes `count` numbers. False if not exactly `count` of the `universe` bits are set.
  bool take_bitmap(std::uint32_t universe, std::uint32_t count, std::uint16_t* out) noexcept {
    std::uint32_t found = 0;
    for (std::uint32_t done = 0; done < universe; done += 32) {
      std::uint32_t ahead = field(at_ + done, std::min(32U, universe - done));
      for (; ahead != 0; ahead &= ahead - 1) {
        if (found == count) return false;
        out[found++] = static_cast<std::uint16_t>(done + std::countr_zero(ahead));
      }
    }
    at_ += universe;
    return found == count;
  }

 private:
  // Returns at least 57 bits from `at` on.
  std::uint64_t window(std::uint32_t at) const noexcept {
    std::uint64_t loaded = 0;
    std::memcpy(&loaded, bytes_ + at / 8, sizeof loaded);
    return loaded >> (at % 8);
  }

  const unsigned char* bytes_;
  std::uint32_t bits_;
  std::uint32_t at_{0};
};

}  // namespace rose::transfer
