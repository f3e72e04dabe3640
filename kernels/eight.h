// Eight elements of 16 bits: what one thread loads at once, 128 bits where the address allows.
#pragma once

#include "digest_sum.h"

namespace rose::kernels {

constexpr u32 kEight = 8;

struct alignas(16) Eight {
  u32 pair[4];

  ROSE_DEVICE u16 at(u32 i) const { return static_cast<u16>(pair[i / 2] >> (16 * (i % 2))); }
  ROSE_DEVICE void set(u32 i, u16 bits) {
    const u32 shift = 16 * (i % 2);
    pair[i / 2] = (pair[i / 2] & ~(0xFFFFU << shift)) | static_cast<u32>(bits) << shift;
  }
  // Elements 4 i to 4 i + 3 as a word of the digest.
  ROSE_DEVICE u64 digest_word(u32 i) const {
    return pair[2 * i] | static_cast<u64>(pair[2 * i + 1]) << 32;
  }
};

ROSE_DEVICE bool is_aligned_16(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % alignof(Eight) == 0;
}

// Elements `at` to `at` + 7 of `count`; zeros after the end. `is_aligned`: that of elements + at.
ROSE_DEVICE Eight load_eight(const u16* elements, u64 at, u64 count, bool is_aligned) {
  if (is_aligned && at + kEight <= count) {
    return *reinterpret_cast<const Eight*>(elements + at);
  }
  Eight eight{};
#pragma unroll
  for (u32 i = 0; i < kEight; ++i) {
    if (at + i < count) eight.set(i, elements[at + i]);
  }
  return eight;
}

// Adds the words that elements `at` to `at` + 7 of `count` make. Element 0 is `first_index` in its
// tensor; both are multiples of four.
ROSE_DEVICE void add_to_digest(DigestSum& sum, const Eight& eight, u64 at, u64 count,
                               u64 first_index, u64 seed) {
  const u64 word = (first_index + at) / kElementsOfDigestWord;
  if (at < count) sum.add(eight.digest_word(0), word, seed);
  if (at + kElementsOfDigestWord < count) sum.add(eight.digest_word(1), word + 1, seed);
}

}  // namespace rose::kernels
