#include "transfer/simd.h"

#if defined(__x86_64__)

// g++ 12 finds "uninitialised" values inside its own avx512fintrin.h.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

namespace rose::transfer {

namespace {

#define ROSE_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,popcnt")))

ROSE_AVX512 inline __m512i mix_avx512(__m512i x) noexcept {
  const __m512i first = _mm512_set1_epi64(static_cast<long long>(kMixFirst));
  const __m512i second = _mm512_set1_epi64(static_cast<long long>(kMixSecond));
  x = _mm512_mullo_epi64(_mm512_xor_si512(x, _mm512_srli_epi64(x, 30)), first);
  x = _mm512_mullo_epi64(_mm512_xor_si512(x, _mm512_srli_epi64(x, 27)), second);
  return _mm512_xor_si512(x, _mm512_srli_epi64(x, 31));
}

// (first_word + 1 + lane) * stride + seed in each lane.
ROSE_AVX512 inline __m512i keys_avx512(std::uint64_t first_word, std::uint64_t stride,
                                       std::uint64_t seed) noexcept {
  const __m512i lanes = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i strides = _mm512_set1_epi64(static_cast<long long>(stride));
  const std::uint64_t key = (first_word + 1) * stride + seed;
  return _mm512_add_epi64(_mm512_mullo_epi64(lanes, strides),
                          _mm512_set1_epi64(static_cast<long long>(key)));
}

// Writes those of 16 numbers from `first` on whose bit is set; always writes 16 places.
ROSE_AVX512 inline std::uint16_t* write_set_avx512(std::uint32_t bits, std::uint32_t first,
                                                   std::uint16_t* out) noexcept {
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i numbers = _mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<int>(first)));
  // To a register and then stored whole: compressing to memory is slow on some processors.
  const __m512i found = _mm512_maskz_compress_epi32(static_cast<__mmask16>(bits), numbers);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi32_epi16(found));
  return out + _mm_popcnt_u32(bits & 0xFFFF);
}

}  // namespace

ROSE_AVX512 std::size_t find_changed_avx512(const std::uint16_t* fresh, const std::uint16_t* shadow,
                                            std::size_t count, std::uint32_t base,
                                            std::uint16_t* out) noexcept {
  std::uint16_t* const begin = out;
  for (std::size_t i = 0; i < count; i += 32) {
    const std::size_t rest = count - i;
    const __mmask32 inside = rest >= 32 ? ~__mmask32{0} : (__mmask32{1} << rest) - 1;
    const __m512i a = _mm512_maskz_loadu_epi16(inside, fresh + i);
    const __m512i b = _mm512_maskz_loadu_epi16(inside, shadow + i);
    const std::uint32_t changed = _mm512_cmpneq_epu16_mask(a, b);
    const auto at = base + static_cast<std::uint32_t>(i);
    out = write_set_avx512(changed, at, out);
    out = write_set_avx512(changed >> 16, at + 16, out);
  }
  return static_cast<std::size_t>(out - begin);
}

ROSE_AVX512 void add_words_avx512(const std::uint16_t* bits, std::size_t words,
                                  std::uint64_t first_word, std::uint64_t seed,
                                  Digest& digest) noexcept {
  __m512i first_keys = keys_avx512(first_word, kStrideFirst, seed);
  __m512i second_keys = keys_avx512(first_word, kStrideSecond, seed);
  const __m512i first_stride = _mm512_set1_epi64(static_cast<long long>(8 * kStrideFirst));
  const __m512i second_stride = _mm512_set1_epi64(static_cast<long long>(8 * kStrideSecond));
  __m512i first_sums = _mm512_setzero_si512();
  __m512i second_sums = _mm512_setzero_si512();
  std::size_t i = 0;
  for (; i + 8 <= words; i += 8) {
    const __m512i word = _mm512_loadu_si512(bits + 4 * i);
    first_sums = _mm512_add_epi64(first_sums, mix_avx512(_mm512_add_epi64(word, first_keys)));
    second_sums = _mm512_add_epi64(second_sums, mix_avx512(_mm512_add_epi64(word, second_keys)));
    first_keys = _mm512_add_epi64(first_keys, first_stride);
    second_keys = _mm512_add_epi64(second_keys, second_stride);
  }
  digest.first += static_cast<std::uint64_t>(_mm512_reduce_add_epi64(first_sums));
  digest.second += static_cast<std::uint64_t>(_mm512_reduce_add_epi64(second_sums));
  add_words_portable(bits + 4 * i, words - i, first_word + i, seed, digest);
}

}  // namespace rose::transfer

#endif
