// Eight elements, loaded by one thread with the widest loads that the address allows.
#pragma once

#include "digest_sum.h"
#include "place.h"

namespace rose::kernels {

constexpr u32 kEight = 8;

template <typename T>
struct alignas(sizeof(T) == 1 ? 8 : 16) Eight {
  static constexpr u32 kBits = 8 * sizeof(T);
  static constexpr u32 kWords = 2 * sizeof(T);
  static constexpr u32 kDigestWords = sizeof(T);
  static constexpr u32 kInDigestWord = kEight / kDigestWords;

  u32 words[kWords];

  ROSE_DEVICE T at(u32 i) const {
    return static_cast<T>(words[i * kBits / 32] >> (i * kBits % 32));
  }
  ROSE_DEVICE void set(u32 i, T bits) {
    const u32 shift = i * kBits % 32;
    u32& word = words[i * kBits / 32];
    word = (word & ~(low_mask(kBits) << shift)) | static_cast<u32>(bits) << shift;
  }
  // Moves every element down by one and appends `bits`. Registers cannot be indexed at run time.
  ROSE_DEVICE void shift_in(T bits) {
#pragma unroll
    for (u32 i = 0; i < kWords; ++i) {
      const u32 next = i + 1 < kWords ? words[(i + 1) % kWords] : bits;
      words[i] = static_cast<u32>((static_cast<u64>(next) << 32 | words[i]) >> kBits);
    }
    if constexpr (kBits < 32) words[kWords - 1] |= static_cast<u32>(bits) << (32 - kBits);
  }
  ROSE_DEVICE u64 digest_word(u32 i) const {
    return words[2 * i] | static_cast<u64>(words[2 * i + 1]) << 32;
  }
};

template <typename T>
ROSE_DEVICE bool is_aligned(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % alignof(Eight<T>) == 0;
}

// Loads elements `at` to `at` + 7 of `count`. Elements after the end are 0.
template <typename T>
ROSE_DEVICE Eight<T> load_eight(const Box& box, u64 at, u64 count) {
  const T* base = reinterpret_cast<const T*>(box.base);
  Eight<T> eight{};
  if (at >= count) return eight;
  Place place = place_of(box, at);
  const bool is_whole = count - at >= kEight && place.rest >= kEight && box.strides[3] == 1;
  if (is_whole && is_aligned<T>(base + place.offset)) {
    return *reinterpret_cast<const Eight<T>*>(base + place.offset);
  }
#pragma unroll 1
  for (u32 i = 0; i < kEight; ++i) {
    eight.shift_in(at + i < count ? base[place.offset] : T{0});
    place.offset += box.strides[3];
    --place.rest;
    if (place.rest == 0 && at + i + 1 < count) place = place_of(box, at + i + 1);
  }
  return eight;
}

// Adds the digest words of elements `at` to `at` + 7 of `count`. Element 0 of the array has the
// index `first_index` in its tensor; `at` and `first_index` are at multiples of a digest word.
template <typename T>
ROSE_DEVICE void add_to_digest(DigestSum& sum, const Eight<T>& eight, u64 at, u64 count,
                               u64 first_index, u64 seed) {
  constexpr u32 kIn = Eight<T>::kInDigestWord;
  const u64 word = (first_index + at) / kIn;
#pragma unroll
  for (u32 i = 0; i < Eight<T>::kDigestWords; ++i) {
    if (at + i * kIn < count) sum.add(eight.digest_word(i), word + i, seed);
  }
}

// Updates `sum` for those digest words of eight elements that differ between `old` and `now`.
// `index` is the first element's index in its tensor.
template <typename T>
ROSE_DEVICE void replace_in_digest(DigestSum& sum, const Eight<T>& old, const Eight<T>& now,
                                   u64 index, u64 seed) {
  const u64 first = index / Eight<T>::kInDigestWord;
  u32 differ = 0;
#pragma unroll
  for (u32 i = 0; i < Eight<T>::kDigestWords; ++i) {
    differ |= (old.digest_word(i) != now.digest_word(i) ? 1U : 0U) << i;
  }
  // Few words differ, and they have different places i in each lane. So in each round, every lane
  // takes its first remaining word.
#pragma unroll 1
  for (; differ != 0; differ &= differ - 1) {
    const u32 at = floor_log2(differ & (0U - differ));
    u64 before = 0;
    u64 after = 0;
#pragma unroll
    for (u32 i = 0; i < Eight<T>::kDigestWords; ++i) {
      before = at == i ? old.digest_word(i) : before;
      after = at == i ? now.digest_word(i) : after;
    }
    sum.replace(before, after, DigestKeys::of(first + at, seed));
  }
}

}  // namespace rose::kernels
