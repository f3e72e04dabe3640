// The additive digest of a tensor. docs/protocol.md, "Digests".
#pragma once

#include "device.h"

namespace rose::kernels {

constexpr u64 kFirstStride = 0x9E3779B97F4A7C15;
constexpr u64 kSecondStride = 0xD1B54A32D192ED03;
constexpr u32 kBitsOfDigestWord = 64;

ROSE_HD inline u64 mix(u64 x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return x ^ x >> 31;
}

// The numbers that are added to a word, one per sum, before it is mixed.
struct DigestKeys {
  u64 first;
  u64 second;

  // `index` is the word's index in its tensor.
  ROSE_HD static DigestKeys of(u64 index, u64 seed) {
    return {(index + 1) * kFirstStride + seed, (index + 1) * kSecondStride + seed};
  }
  // Returns the keys of the word that is `words` words further on.
  ROSE_HD DigestKeys after(u64 words) const {
    return {first + words * kFirstStride, second + words * kSecondStride};
  }
};

struct DigestSum {
  u64 first{0};
  u64 second{0};

  ROSE_HD void add(u64 word, const DigestKeys& keys) {
    first += mix(word + keys.first);
    second += mix(word + keys.second);
  }
  // `index` is the word's index in its tensor.
  ROSE_HD void add(u64 word, u64 index, u64 seed) { add(word, DigestKeys::of(index, seed)); }
  ROSE_HD void operator+=(const DigestSum& other) {
    first += other.first;
    second += other.second;
  }
  ROSE_HD void operator-=(const DigestSum& other) {
    first -= other.first;
    second -= other.second;
  }
  // Updates the digest of a tensor for a word that changes from `old` to `now`.
  ROSE_HD void replace(u64 old, u64 now, const DigestKeys& keys) {
    first += mix(now + keys.first) - mix(old + keys.first);
    second += mix(now + keys.second) - mix(old + keys.second);
  }
};

}  // namespace rose::kernels
