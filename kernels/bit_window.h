// Writing a stream of bits out of order: a window of it lies in memory that all threads of a CTA
// see, and they set bits there with an atomic or for each word they touch.
#pragma once

#include "device.h"

namespace rose::kernels {

struct BitWindow {
  u32* words;  // zero before
  u32 first;   // the word of the stream that words[0] is
  u32 size;

  ROSE_DEVICE bool has(u32 word) const { return word - first < size; }
  // Whether it has a part of the `width` bits at bit `at`.
  ROSE_DEVICE bool touches(u32 at, u32 width) const {
    return width != 0 && (has(at / 32) || has((at + width - 1) / 32));
  }
};

// One thread's fields in one section, in ascending order. Gathers the bits of a word in a register;
// what lies outside the window is dropped.
class BitWriter {
 public:
  // A field of at most 32 bits at bit `at` of the stream.
  ROSE_DEVICE void put(const BitWindow& window, u32 at, u32 field) {
    const u64 shifted = static_cast<u64>(field) << (at % 32);
    put_word(window, at / 32, static_cast<u32>(shifted));
    const u32 rest = static_cast<u32>(shifted >> 32);
    if (rest != 0) put_word(window, at / 32 + 1, rest);
  }

  ROSE_DEVICE void flush(const BitWindow& window) {
    if (bits_ != 0 && window.has(word_)) atomicOr(&window.words[word_ - window.first], bits_);
    bits_ = 0;
  }

 private:
  ROSE_DEVICE void put_word(const BitWindow& window, u32 word, u32 bits) {
    if (word != word_) {
      flush(window);
      word_ = word;
    }
    bits_ |= bits;
  }

  u32 word_{0};
  u32 bits_{0};
};

}  // namespace rose::kernels
