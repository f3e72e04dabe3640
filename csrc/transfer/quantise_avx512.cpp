#include "transfer/quantise_simd.h"

#if defined(__x86_64__)

// g++ 12 warns of "uninitialised" values inside its own avx512fintrin.h.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

namespace rose::transfer {

namespace {

#define ROSE_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))

constexpr std::size_t kLanesAvx512 = 16;

// kernels::code_of() in 16 lanes; the comments there explain the formulas.
ROSE_AVX512 inline __m512 quotients_avx512(__m512i magnitudes, __m512 scale) noexcept {
  return _mm512_div_ps(_mm512_castsi512_ps(_mm512_slli_epi32(magnitudes, 16)), scale);
}

ROSE_AVX512 inline __m128i fp8_codes_avx512(__m512i bits, __m512 scale) noexcept {
  const __m512i magnitudes = _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFF));
  const __m512 quotients = quotients_avx512(magnitudes, scale);
  const __m512i raw = _mm512_castps_si512(quotients);
  const __m512i last = _mm512_and_si512(_mm512_srli_epi32(raw, 20), _mm512_set1_epi32(1));
  const __m512i half = _mm512_add_epi32(last, _mm512_set1_epi32((1 << 19) - 1));
  const __m512i kept = _mm512_srli_epi32(_mm512_add_epi32(raw, half), 20);
  const __m512i normal = _mm512_min_epi32(_mm512_sub_epi32(kept, _mm512_set1_epi32(120 << 3)),
                                          _mm512_set1_epi32(kernels::kFp8Largest));
  const __m512 unit = _mm512_set1_ps(16384.0F);
  const __m512i subnormal = _mm512_sub_epi32(_mm512_castps_si512(_mm512_add_ps(quotients, unit)),
                                             _mm512_castps_si512(unit));
  const __mmask16 is_small = _mm512_cmplt_epi32_mask(raw, _mm512_set1_epi32(0x3C800000));
  const __mmask16 is_nan = _mm512_cmpgt_epi32_mask(magnitudes, _mm512_set1_epi32(0x7F80));
  __m512i codes = _mm512_mask_mov_epi32(normal, is_small, subnormal);
  codes = _mm512_mask_mov_epi32(codes, is_nan, _mm512_set1_epi32(kernels::kFp8Nan));
  const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 8), _mm512_set1_epi32(0x80));
  return _mm512_cvtepi32_epi8(_mm512_or_si512(codes, sign));
}

ROSE_AVX512 inline __m128i int8_codes_avx512(__m512i bits, __m512 scale) noexcept {
  const __m512i magnitudes = _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFF));
  // If the first operand is a NaN, the result is the second operand.
  const __m512 kept = _mm512_min_ps(quotients_avx512(magnitudes, scale), _mm512_set1_ps(127.0F));
  const __m512 unit = _mm512_set1_ps(8388608.0F);
  const __m512i sizes =
      _mm512_sub_epi32(_mm512_castps_si512(_mm512_add_ps(kept, unit)), _mm512_castps_si512(unit));
  const __mmask16 is_number = _mm512_cmple_epi32_mask(magnitudes, _mm512_set1_epi32(0x7F80));
  const __mmask16 is_negative = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x8000));
  const __m512i codes = _mm512_mask_sub_epi32(sizes, is_negative, _mm512_setzero_si512(), sizes);
  return _mm512_cvtepi32_epi8(_mm512_maskz_mov_epi32(is_number, codes));
}

}  // namespace

ROSE_AVX512 std::uint32_t largest_of_avx512(const std::uint16_t* bits, std::size_t count) noexcept {
  const __m512i magnitude = _mm512_set1_epi16(0x7FFF);
  const __m512i infinity = _mm512_set1_epi16(0x7F80);
  __m512i largest = _mm512_setzero_si512();
  for (std::size_t i = 0; i < count; i += 2 * kLanesAvx512) {
    const std::size_t left = count - i;
    const __mmask32 is_there = left >= 32 ? 0xFFFF'FFFFU : (1U << left) - 1;
    const __m512i loaded = _mm512_maskz_loadu_epi16(is_there, bits + i);
    const __m512i magnitudes = _mm512_and_si512(loaded, magnitude);
    const __mmask32 is_finite = _mm512_cmplt_epi16_mask(magnitudes, infinity);
    largest = _mm512_mask_max_epi16(largest, is_finite, largest, magnitudes);
  }
  const __m512i low = _mm512_and_si512(largest, _mm512_set1_epi32(0xFFFF));
  const __m512i both = _mm512_max_epi32(low, _mm512_srli_epi32(largest, 16));
  return static_cast<std::uint32_t>(_mm512_reduce_max_epi32(both));
}

ROSE_AVX512 void encode_fp8_avx512(const std::uint16_t* bits, std::size_t count, float scale,
                                   std::uint8_t* codes) noexcept {
  const __m512 by = _mm512_set1_ps(scale);
  for (std::size_t i = 0; i < count; i += kLanesAvx512) {
    const std::size_t left = count - i;
    const auto is_there = static_cast<__mmask16>(left >= kLanesAvx512 ? 0xFFFFU : (1U << left) - 1);
    const __m512i loaded = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(is_there, bits + i));
    _mm_mask_storeu_epi8(codes + i, is_there, fp8_codes_avx512(loaded, by));
  }
}

ROSE_AVX512 void encode_int8_avx512(const std::uint16_t* bits, std::size_t count, float scale,
                                    std::uint8_t* codes) noexcept {
  const __m512 by = _mm512_set1_ps(scale);
  for (std::size_t i = 0; i < count; i += kLanesAvx512) {
    const std::size_t left = count - i;
    const auto is_there = static_cast<__mmask16>(left >= kLanesAvx512 ? 0xFFFFU : (1U << left) - 1);
    const __m512i loaded = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(is_there, bits + i));
    _mm_mask_storeu_epi8(codes + i, is_there, int8_codes_avx512(loaded, by));
  }
}

#undef ROSE_AVX512

}  // namespace rose::transfer

#endif
