// Writes a stream of bits out of order. A window of the stream is in shared memory; the threads of
// the CTA set its bits with one atomic per touched word.
#pragma once

#include "device.h"

namespace rose::kernels {

struct BitWindow {
  u32* words;  // all 0 before the first write
  u32 first;   // index of words[0] in the stream
  u32 size;

  ROSE_DEVICE bool has(u32 word) const { return word - first < size; }
  // True if any of the `width` bits from bit `at` on is in a word of the window.
  ROSE_DEVICE bool touches(u32 at, u32 width) const {
    return width != 0 && (has(at / 32) || has((at + width - 1) / 32));
  }
};

// Writes one thread's fields of a section, in ascending order. The writer collects the bits of a
// word in a register, and drops bits outside the window.
class BitWriter {
 public:
  // Writes a field of at most 32 bits at bit `at` of the stream.
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
