// A fixed set of small numbers that quickly finds the next member.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace rose::memory {

class BitSet {
 public:
  explicit BitSet(std::size_t size) noexcept : size_{size}, words_((size + 63) / 64, 0) {}

  std::size_t size() const noexcept { return size_; }
  void set(std::size_t index) noexcept { words_[index / 64] |= std::uint64_t{1} << (index % 64); }
  void clear(std::size_t index) noexcept {
    words_[index / 64] &= ~(std::uint64_t{1} << (index % 64));
  }
  bool test(std::size_t index) const noexcept {
    return (words_[index / 64] >> (index % 64) & 1) != 0;
  }
  // The smallest member >= from, or size() if there is none.
  std::size_t find(std::size_t from) const noexcept {
    if (from >= size_) return size_;
    std::size_t word = from / 64;
    std::uint64_t bits = words_[word] & (~std::uint64_t{0} << (from % 64));
    while (bits == 0) {
      if (++word == words_.size()) return size_;
      bits = words_[word];
    }
    return word * 64 + static_cast<std::size_t>(std::countr_zero(bits));
  }

 private:
  std::size_t size_;
  std::vector<std::uint64_t> words_;
};

}  // namespace rose::memory
