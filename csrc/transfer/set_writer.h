// Writes consecutive bits: fields, and sets of ascending places.
#pragma once

#include <algorithm>
#include <cstdint>

namespace rose::transfer {

// Appends fields, lowest bit first, starting at a word boundary. Needs room for words_of_bits(all
// bits) words, and writes no further word. It does not test whether a word is full, because that
// branch is unpredictable: each call writes the last word, even if incomplete.
class BitWriter {
 public:
  explicit BitWriter(std::uint32_t* out) noexcept : out_{out} {}

  // Appends a field of 1 to 32 bits.
  void put(std::uint64_t value, std::uint32_t width) noexcept {
    pending_ |= value << pending_bits_;
    pending_bits_ += width;
    *out_ = static_cast<std::uint32_t>(pending_);
    out_ += pending_bits_ / 32;
    pending_ >>= pending_bits_ & 32;
    // A later put(), or finish(), writes the remaining bits.
    pending_bits_ %= 32;
  }
  // Appends `zeros` zeros, then a one.
  void put_unary(std::uint32_t zeros) noexcept {
    for (; zeros >= 32; zeros -= 32) put(0, 32);
    put(std::uint64_t{1} << zeros, zeros + 1);
  }
  // Writes the last word if it is not full, with unused bits 0. Returns the end of the words.
  std::uint32_t* finish() noexcept {
    if (pending_bits_ != 0) *out_++ = static_cast<std::uint32_t>(pending_);
    return out_;
  }

 private:
  std::uint32_t* out_;
  std::uint64_t pending_{0};
  std::uint32_t pending_bits_{0};
};

// Ascending places: place(i) is (numbers[i] >> shift) + step * i.
struct SetPlaces {
  const std::uint16_t* numbers{nullptr};
  std::uint32_t count{0};
  std::uint32_t shift{0};
  std::uint32_t step{0};

  std::uint32_t place(std::uint32_t i) const noexcept {
    return (std::uint32_t{numbers[i]} >> shift) + step * i;
  }
};

// Writes ones at ascending places, and zeros between them.
class SetWriter {
 public:
  explicit SetWriter(std::uint32_t* out) noexcept : bits_{out} {}

  // The number of bits written so far. The last of them is set.
  std::uint32_t at() const noexcept { return at_; }
  void put(std::uint32_t place) noexcept {
    bits_.put_unary(place - at_);
    at_ = place + 1;
  }
  // Writes the bits from at() to `end`, at most 32. The last of them must be set.
  void put_some(std::uint64_t set, std::uint32_t end) noexcept {
    bits_.put(set, end - at_);
    at_ = end;
  }
  // Writes the last word, then 0 up to `end`, and returns `end`.
  std::uint32_t* finish(std::uint32_t* end) noexcept {
    std::fill(bits_.finish(), end, 0U);
    return end;
  }

 private:
  BitWriter bits_;
  std::uint32_t at_{0};
};

// Writes the next places of a set, from the i-th on: four if they are close together, otherwise
// one. Returns their number.
inline std::uint32_t put_next(const SetPlaces& set, std::uint32_t i, SetWriter& writer) noexcept {
  constexpr std::uint32_t kAtOnce = 4;
  const std::uint32_t at = writer.at();
  const bool is_there = i + kAtOnce <= set.count;
  const std::uint32_t end = is_there ? set.place(i + kAtOnce - 1) + 1 : 0;
  if (!is_there || end - at > 32) {
    writer.put(set.place(i));
    return 1;
  }
  std::uint64_t some = 0;
  for (std::uint32_t k = i; k < i + kAtOnce; ++k) some |= std::uint64_t{1} << (set.place(k) - at);
  writer.put_some(some, end);
  return kAtOnce;
}

}  // namespace rose::transfer
