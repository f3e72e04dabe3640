#include "transfer/class_planes.h"

#if defined(__x86_64__)

// g++ 12 finds "uninitialised" values inside its own avx512fintrin.h.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

namespace rose::transfer {

namespace {

#define ROSE_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))

// The rule in every lane.
struct RuleAvx512 {
  __m128i shift;
  __m512i mask;
  __m512i origin;
  __m512i last;
};

template <ElementBits T>
ROSE_AVX512 inline __m512i in_each_lane(std::uint64_t number) noexcept {
  if constexpr (sizeof(T) == 1) return _mm512_set1_epi8(static_cast<char>(number));
  if constexpr (sizeof(T) == 2) return _mm512_set1_epi16(static_cast<short>(number));
  return _mm512_set1_epi32(static_cast<int>(number));
}

template <ElementBits T>
ROSE_AVX512 inline RuleAvx512 rule_avx512(const ClassRule& rule) noexcept {
  return {_mm_cvtsi32_si128(static_cast<int>(rule.shift)),
          in_each_lane<T>((std::uint64_t{1} << rule.exponent_bits) - 1),
          in_each_lane<T>(rule.origin), in_each_lane<T>(kClasses - 1)};
}

// The class of each lane.
template <ElementBits T>
ROSE_AVX512 inline __m512i classes_avx512(const T* bits, const RuleAvx512& rule) noexcept {
  const __m512i loaded = _mm512_loadu_si512(bits);
  if constexpr (sizeof(T) == 4) {
    const __m512i exponent = _mm512_and_si512(_mm512_srl_epi32(loaded, rule.shift), rule.mask);
    const __m512i above = _mm512_sub_epi32(_mm512_max_epu32(exponent, rule.origin), rule.origin);
    return _mm512_min_epu32(above, rule.last);
  }
  // Bits that a byte gets from its neighbour are above its exponent, so the mask drops them.
  const __m512i exponent = _mm512_and_si512(_mm512_srl_epi16(loaded, rule.shift), rule.mask);
  if constexpr (sizeof(T) == 2) {
    return _mm512_min_epu16(_mm512_subs_epu16(exponent, rule.origin), rule.last);
  }
  return _mm512_min_epu8(_mm512_subs_epu8(exponent, rule.origin), rule.last);
}

template <ElementBits T>
ROSE_AVX512 inline std::uint64_t plane_avx512(__m512i classes, __m512i bit) noexcept {
  if constexpr (sizeof(T) == 1) return _mm512_test_epi8_mask(classes, bit);
  if constexpr (sizeof(T) == 2) return _mm512_test_epi16_mask(classes, bit);
  return _mm512_test_epi32_mask(classes, bit);
}

template <ElementBits T>
ROSE_AVX512 inline void planes_loop(const T* bits, std::uint32_t groups, const ClassRule& rule,
                                    ClassPlanes* planes) noexcept {
  constexpr std::uint32_t kLanes = 64 / sizeof(T);
  const RuleAvx512 lanes = rule_avx512<T>(rule);
  const __m512i bit_0 = in_each_lane<T>(1);
  const __m512i bit_1 = in_each_lane<T>(2);
  const __m512i bit_2 = in_each_lane<T>(4);
  for (std::uint32_t group = 0; group < groups; ++group) {
    ClassPlanes found{};
    for (std::uint32_t lane = 0; lane < kGroupElements; lane += kLanes) {
      const __m512i classes = classes_avx512(bits + lane, lanes);
      found.of[0] |= plane_avx512<T>(classes, bit_0) << lane;
      found.of[1] |= plane_avx512<T>(classes, bit_1) << lane;
      found.of[2] |= plane_avx512<T>(classes, bit_2) << lane;
    }
    planes[group] = found;
    bits += kGroupElements;
  }
}

}  // namespace

ROSE_AVX512 ROSE_FIND_PLANES(avx512, std::uint8_t) { planes_loop(bits, groups, rule, planes); }
ROSE_AVX512 ROSE_FIND_PLANES(avx512, std::uint16_t) { planes_loop(bits, groups, rule, planes); }
ROSE_AVX512 ROSE_FIND_PLANES(avx512, std::uint32_t) { planes_loop(bits, groups, rule, planes); }

}  // namespace rose::transfer

#endif
