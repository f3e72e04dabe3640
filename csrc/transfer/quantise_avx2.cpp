#include "transfer/quantise_simd.h"

#if defined(__x86_64__)

#include <immintrin.h>

namespace rose::transfer {

namespace {

#define ROSE_AVX2 __attribute__((target("avx2")))

constexpr std::size_t kLanesAvx2 = 8;

// kernels::code_of() in 8 lanes; the comments there explain the formulas.
ROSE_AVX2 inline __m256 quotients_avx2(__m256i magnitudes, __m256 scale) noexcept {
  return _mm256_div_ps(_mm256_castsi256_ps(_mm256_slli_epi32(magnitudes, 16)), scale);
}

ROSE_AVX2 inline __m256i fp8_codes_avx2(__m256i bits, __m256 scale) noexcept {
  const __m256i magnitudes = _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFF));
  const __m256 quotients = quotients_avx2(magnitudes, scale);
  const __m256i raw = _mm256_castps_si256(quotients);
  const __m256i last = _mm256_and_si256(_mm256_srli_epi32(raw, 20), _mm256_set1_epi32(1));
  const __m256i half = _mm256_add_epi32(last, _mm256_set1_epi32((1 << 19) - 1));
  const __m256i kept = _mm256_srli_epi32(_mm256_add_epi32(raw, half), 20);
  const __m256i normal = _mm256_min_epi32(_mm256_sub_epi32(kept, _mm256_set1_epi32(120 << 3)),
                                          _mm256_set1_epi32(kernels::kFp8Largest));
  const __m256 unit = _mm256_set1_ps(16384.0F);
  const __m256i subnormal = _mm256_sub_epi32(_mm256_castps_si256(_mm256_add_ps(quotients, unit)),
                                             _mm256_castps_si256(unit));
  const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x3C800000), raw);
  const __m256i is_nan = _mm256_cmpgt_epi32(magnitudes, _mm256_set1_epi32(0x7F80));
  __m256i codes = _mm256_blendv_epi8(normal, subnormal, is_small);
  codes = _mm256_blendv_epi8(codes, _mm256_set1_epi32(kernels::kFp8Nan), is_nan);
  const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 8), _mm256_set1_epi32(0x80));
  return _mm256_or_si256(codes, sign);
}

ROSE_AVX2 inline __m256i int8_codes_avx2(__m256i bits, __m256 scale) noexcept {
  const __m256i magnitudes = _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFF));
  // If the first operand is a NaN, the result is the second operand.
  const __m256 kept = _mm256_min_ps(quotients_avx2(magnitudes, scale), _mm256_set1_ps(127.0F));
  const __m256 unit = _mm256_set1_ps(8388608.0F);
  const __m256i sizes =
      _mm256_sub_epi32(_mm256_castps_si256(_mm256_add_ps(kept, unit)), _mm256_castps_si256(unit));
  const __m256i is_nan = _mm256_cmpgt_epi32(magnitudes, _mm256_set1_epi32(0x7F80));
  // -1 for a negative number, otherwise 0. With -1, (x ^ -1) - (-1) is -x.
  const __m256i sign = _mm256_srai_epi32(_mm256_slli_epi32(bits, 16), 31);
  const __m256i codes = _mm256_sub_epi32(_mm256_xor_si256(sizes, sign), sign);
  return _mm256_and_si256(_mm256_andnot_si256(is_nan, codes), _mm256_set1_epi32(0xFF));
}

// Stores the low bytes of 8 lanes. No lane may exceed 255.
ROSE_AVX2 inline void store_codes_avx2(__m256i codes, std::uint8_t* out) noexcept {
  const __m128i words =
      _mm_packus_epi32(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm_packus_epi16(words, words));
}

ROSE_AVX2 inline __m256i load_bits_avx2(const std::uint16_t* bits) noexcept {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bits)));
}

}  // namespace

ROSE_AVX2 std::uint32_t largest_of_avx2(const std::uint16_t* bits, std::size_t count) noexcept {
  const __m256i magnitude = _mm256_set1_epi16(0x7FFF);
  const __m256i infinity = _mm256_set1_epi16(0x7F80);
  __m256i largest = _mm256_setzero_si256();
  std::size_t i = 0;
  for (; i + 2 * kLanesAvx2 <= count; i += 2 * kLanesAvx2) {
    const __m256i loaded = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bits + i));
    const __m256i magnitudes = _mm256_and_si256(loaded, magnitude);
    const __m256i is_finite = _mm256_cmpgt_epi16(infinity, magnitudes);
    largest = _mm256_max_epi16(largest, _mm256_and_si256(magnitudes, is_finite));
  }
  alignas(32) std::uint16_t lanes[2 * kLanesAvx2];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), largest);
  // Lanes hold finite magnitudes or 0, so the function for the rest also works on them.
  const std::uint32_t of_lanes = largest_of_portable(lanes, 2 * kLanesAvx2);
  const std::uint32_t of_rest = largest_of_portable(bits + i, count - i);
  return of_lanes > of_rest ? of_lanes : of_rest;
}

ROSE_AVX2 void encode_fp8_avx2(const std::uint16_t* bits, std::size_t count, float scale,
                               std::uint8_t* codes) noexcept {
  const __m256 by = _mm256_set1_ps(scale);
  std::size_t i = 0;
  for (; i + kLanesAvx2 <= count; i += kLanesAvx2) {
    store_codes_avx2(fp8_codes_avx2(load_bits_avx2(bits + i), by), codes + i);
  }
  encode_fp8_portable(bits + i, count - i, scale, codes + i);
}

ROSE_AVX2 void encode_int8_avx2(const std::uint16_t* bits, std::size_t count, float scale,
                                std::uint8_t* codes) noexcept {
  const __m256 by = _mm256_set1_ps(scale);
  std::size_t i = 0;
  for (; i + kLanesAvx2 <= count; i += kLanesAvx2) {
    store_codes_avx2(int8_codes_avx2(load_bits_avx2(bits + i), by), codes + i);
  }
  encode_int8_portable(bits + i, count - i, scale, codes + i);
}

#undef ROSE_AVX2

}  // namespace rose::transfer

#endif
