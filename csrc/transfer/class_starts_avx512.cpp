#include "transfer/class_planes.h"

#if defined(__x86_64__)

// g++ 12 warns of "uninitialised" values inside its own avx512fintrin.h.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

namespace rose::transfer {

namespace {

#define ROSE_COUNTING __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vpopcntdq")))

// Lane c has all bits set if bit `plane` of c is clear. XOR with a plane then gives the elements
// that agree with c in that bit.
ROSE_COUNTING inline __m512i clear_in_class(int plane) noexcept {
  const __m512i classes = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i bit = _mm512_set1_epi64(1LL << plane);
  return _mm512_movm_epi64(_mm512_testn_epi64_mask(classes, bit));
}

ROSE_COUNTING inline __m512i everywhere(std::uint64_t plane) noexcept {
  return _mm512_set1_epi64(static_cast<long long>(plane));
}

}  // namespace

ROSE_COUNTING void find_starts_avx512(const ClassPlanes* planes, std::uint32_t groups,
                                      GroupStarts* starts) noexcept {
  constexpr int kXorThenAnd = 0x28;  // (a ^ b) & c
  const __m512i clear_0 = clear_in_class(0);
  const __m512i clear_1 = clear_in_class(1);
  const __m512i clear_2 = clear_in_class(2);
  __m512i counts = _mm512_setzero_si512();  // one lane per class
  for (std::uint32_t group = 0; group < groups; ++group) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(starts[group].of), _mm512_cvtepi64_epi16(counts));
    const ClassPlanes& at = planes[group];
    __m512i mask = _mm512_xor_si512(everywhere(at.of[0]), clear_0);
    mask = _mm512_ternarylogic_epi64(everywhere(at.of[1]), clear_1, mask, kXorThenAnd);
    mask = _mm512_ternarylogic_epi64(everywhere(at.of[2]), clear_2, mask, kXorThenAnd);
    counts = _mm512_add_epi64(counts, _mm512_popcnt_epi64(mask));
  }
}

#undef ROSE_COUNTING

}  // namespace rose::transfer

#endif
