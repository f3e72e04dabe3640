#include "transfer/class_groups.h"

#if defined(__x86_64__)

// g++ 12 warns of "uninitialised" values inside its own avx512fintrin.h.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

namespace rose::transfer {

namespace {

#define ROSE_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,popcnt")))

constexpr std::uint32_t kStep = 32;

// Writes the numbers whose bit is set, without gaps, and reads no other. May store up to 32
// numbers; those behind the last are meaningless.
ROSE_AVX512 inline void write_set_avx512(std::uint32_t bits, const std::uint8_t* from,
                                         std::uint8_t* to) noexcept {
  const __m256i numbers = _mm256_maskz_loadu_epi8(bits, from);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_maskz_compress_epi8(bits, numbers));
}

ROSE_AVX512 inline void write_set_avx512(std::uint32_t bits, const std::uint16_t* from,
                                         std::uint16_t* to) noexcept {
  const __m512i numbers = _mm512_maskz_loadu_epi16(bits, from);
  _mm512_storeu_si512(to, _mm512_maskz_compress_epi16(bits, numbers));
}

ROSE_AVX512 inline void write_set_avx512(std::uint32_t bits, const std::uint32_t* from,
                                         std::uint32_t* to) noexcept {
  for (std::uint32_t part = 0; part < kStep; part += 16) {
    const auto here = static_cast<__mmask16>(bits >> part);
    const __m512i numbers = _mm512_maskz_loadu_epi32(here, from + part);
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(here, numbers));
    to += _mm_popcnt_u32(here);
  }
}

// Makes one pass over all changes for each class: eight passes without branches and without
// dependent stores are faster than one pass with them.
template <ElementBits T>
ROSE_AVX512 inline ClassCounts group_avx512(const ClassGroups<T>& changes) noexcept {
  ClassCounts counts{};
  std::uint32_t place = 0;
  for (std::uint32_t c = 0; c < kClasses; ++c) {
    const std::uint32_t first = place;
    const __m256i wanted = _mm256_set1_epi8(static_cast<char>(c));
    for (std::uint32_t i = 0; i < changes.changed; i += kStep) {
      const std::uint32_t left = changes.changed - i;
      const __mmask32 here = left >= kStep ? ~0U : (1U << left) - 1;
      const __m256i classes = _mm256_maskz_loadu_epi8(here, changes.classes + i);
      const __mmask32 bits = _mm256_mask_cmpeq_epi8_mask(here, classes, wanted);
      write_set_avx512(bits, changes.ranks + i, changes.grouped_ranks + place);
      write_set_avx512(bits, changes.differences + i, changes.grouped_differences + place);
      place += static_cast<std::uint32_t>(_mm_popcnt_u32(bits));
    }
    counts[c] = place - first;
  }
  return counts;
}

}  // namespace

ROSE_AVX512 ClassCounts group_by_class_avx512(const ClassGroups<std::uint8_t>& changes) noexcept {
  return group_avx512(changes);
}
ROSE_AVX512 ClassCounts group_by_class_avx512(const ClassGroups<std::uint16_t>& changes) noexcept {
  return group_avx512(changes);
}
ROSE_AVX512 ClassCounts group_by_class_avx512(const ClassGroups<std::uint32_t>& changes) noexcept {
  return group_avx512(changes);
}

#undef ROSE_AVX512

}  // namespace rose::transfer

#endif
