#include "transfer/class_planes.h"

#if defined(__x86_64__)

#include <immintrin.h>

namespace rose::transfer {

namespace {

#define ROSE_AVX2 __attribute__((target("avx2")))

// The class rule in every lane.
struct RuleAvx2 {
  __m128i shift;
  __m256i mask;
  __m256i origin;
  __m256i last;
};

template <ElementBits T>
ROSE_AVX2 inline __m256i in_each_lane(std::uint64_t number) noexcept {
  if constexpr (sizeof(T) == 1) return _mm256_set1_epi8(static_cast<char>(number));
  if constexpr (sizeof(T) == 2) return _mm256_set1_epi16(static_cast<short>(number));
  return _mm256_set1_epi32(static_cast<int>(number));
}

template <ElementBits T>
ROSE_AVX2 inline RuleAvx2 rule_avx2(const ClassRule& rule) noexcept {
  return {_mm_cvtsi32_si128(static_cast<int>(rule.shift)),
          in_each_lane<T>((std::uint64_t{1} << rule.exponent_bits) - 1),
          in_each_lane<T>(rule.origin), in_each_lane<T>(kClasses - 1)};
}

// The class of each lane.
template <ElementBits T>
ROSE_AVX2 inline __m256i classes_avx2(const T* bits, const RuleAvx2& rule) noexcept {
  const __m256i loaded = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bits));
  if constexpr (sizeof(T) == 4) {
    const __m256i exponent = _mm256_and_si256(_mm256_srl_epi32(loaded, rule.shift), rule.mask);
    const __m256i above = _mm256_sub_epi32(_mm256_max_epu32(exponent, rule.origin), rule.origin);
    return _mm256_min_epu32(above, rule.last);
  }
  // Bits shifted in from a neighbouring byte are above the exponent, so the mask removes them.
  const __m256i exponent = _mm256_and_si256(_mm256_srl_epi16(loaded, rule.shift), rule.mask);
  if constexpr (sizeof(T) == 2) {
    return _mm256_min_epu16(_mm256_subs_epu16(exponent, rule.origin), rule.last);
  }
  return _mm256_min_epu8(_mm256_subs_epu8(exponent, rule.origin), rule.last);
}

// The classes of 32 elements, one byte each. Packing works within 128-bit lanes; the permutations
// restore the order.
template <ElementBits T>
ROSE_AVX2 inline __m256i bytes_avx2(const T* bits, const RuleAvx2& rule) noexcept {
  if constexpr (sizeof(T) == 1) return classes_avx2(bits, rule);
  if constexpr (sizeof(T) == 2) {
    const __m256i packed =
        _mm256_packus_epi16(classes_avx2(bits, rule), classes_avx2(bits + 16, rule));
    return _mm256_permute4x64_epi64(packed, 0xD8);
  }
  if constexpr (sizeof(T) == 4) {
    const __m256i low = _mm256_packus_epi32(classes_avx2(bits, rule), classes_avx2(bits + 8, rule));
    const __m256i high =
        _mm256_packus_epi32(classes_avx2(bits + 16, rule), classes_avx2(bits + 24, rule));
    return _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high),
                                       _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  }
}

// Returns bit kBit of each class, which a shift moves to the top bit of its byte.
template <int kBit>
ROSE_AVX2 inline std::uint64_t plane_avx2(__m256i classes) noexcept {
  const int bits = _mm256_movemask_epi8(_mm256_slli_epi16(classes, 7 - kBit));
  return static_cast<std::uint32_t>(bits);
}

template <ElementBits T>
ROSE_AVX2 inline void planes_loop(const T* bits, std::uint32_t groups, const ClassRule& rule,
                                  ClassPlanes* planes) noexcept {
  const RuleAvx2 lanes = rule_avx2<T>(rule);
  for (std::uint32_t group = 0; group < groups; ++group) {
    const __m256i low = bytes_avx2(bits, lanes);
    const __m256i high = bytes_avx2(bits + 32, lanes);
    planes[group] = {{plane_avx2<0>(low) | plane_avx2<0>(high) << 32,
                      plane_avx2<1>(low) | plane_avx2<1>(high) << 32,
                      plane_avx2<2>(low) | plane_avx2<2>(high) << 32}};
    bits += kGroupElements;
  }
}

}  // namespace

ROSE_AVX2 void find_planes_avx2(const std::uint8_t* bits, std::uint32_t groups,
                                const ClassRule& rule, ClassPlanes* planes) noexcept {
  planes_loop(bits, groups, rule, planes);
}
ROSE_AVX2 void find_planes_avx2(const std::uint16_t* bits, std::uint32_t groups,
                                const ClassRule& rule, ClassPlanes* planes) noexcept {
  planes_loop(bits, groups, rule, planes);
}
ROSE_AVX2 void find_planes_avx2(const std::uint32_t* bits, std::uint32_t groups,
                                const ClassRule& rule, ClassPlanes* planes) noexcept {
  planes_loop(bits, groups, rule, planes);
}

#undef ROSE_AVX2

}  // namespace rose::transfer

#endif
