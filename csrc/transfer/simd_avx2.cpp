#include "transfer/simd.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "transfer/prefetch.h"
#include "transfer/set_writer.h"

namespace rose::transfer {

namespace {

// Returns the low 64 bits of a product with a constant. Every lane of `low` and `high` has the
// lower and the upper half of the constant.
__attribute__((target("avx2"))) inline __m256i times_avx2(__m256i x, __m256i low,
                                                          __m256i high) noexcept {
  const __m256i cross =
      _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(x, 32), low), _mm256_mul_epu32(x, high));
  return _mm256_add_epi64(_mm256_mul_epu32(x, low), _mm256_slli_epi64(cross, 32));
}

__attribute__((target("avx2"))) inline __m256i mix_avx2(__m256i x) noexcept {
  const __m256i first_low = _mm256_set1_epi64x(static_cast<long long>(kMixFirst & 0xFFFF'FFFF));
  const __m256i first_high = _mm256_set1_epi64x(static_cast<long long>(kMixFirst >> 32));
  const __m256i second_low = _mm256_set1_epi64x(static_cast<long long>(kMixSecond & 0xFFFF'FFFF));
  const __m256i second_high = _mm256_set1_epi64x(static_cast<long long>(kMixSecond >> 32));
  x = times_avx2(_mm256_xor_si256(x, _mm256_srli_epi64(x, 30)), first_low, first_high);
  x = times_avx2(_mm256_xor_si256(x, _mm256_srli_epi64(x, 27)), second_low, second_high);
  return _mm256_xor_si256(x, _mm256_srli_epi64(x, 31));
}

__attribute__((target("avx2"))) inline std::uint64_t total_avx2(__m256i sums) noexcept {
  return static_cast<std::uint64_t>(_mm256_extract_epi64(sums, 0)) +
         static_cast<std::uint64_t>(_mm256_extract_epi64(sums, 1)) +
         static_cast<std::uint64_t>(_mm256_extract_epi64(sums, 2)) +
         static_cast<std::uint64_t>(_mm256_extract_epi64(sums, 3));
}

// (first_word + 1 + lane) * stride + seed in each lane.
__attribute__((target("avx2"))) inline __m256i keys_avx2(std::uint64_t first_word,
                                                         std::uint64_t stride,
                                                         std::uint64_t seed) noexcept {
  const std::uint64_t key = (first_word + 1) * stride + seed;
  return _mm256_set_epi64x(static_cast<long long>(key + 3 * stride),
                           static_cast<long long>(key + 2 * stride),
                           static_cast<long long>(key + stride), static_cast<long long>(key));
}

#define ROSE_AVX2 __attribute__((target("avx2,bmi,popcnt")))

ROSE_AVX2 inline __m256i load_avx2(const void* at) noexcept {
  return _mm256_loadu_si256(static_cast<const __m256i*>(at));
}

// Returns a bit for each of 32 pairs of elements, set if the two differ.
ROSE_AVX2 inline std::uint32_t differ_avx2(const std::uint8_t* a, const std::uint8_t* b) noexcept {
  return ~static_cast<std::uint32_t>(
      _mm256_movemask_epi8(_mm256_cmpeq_epi8(load_avx2(a), load_avx2(b))));
}

ROSE_AVX2 inline std::uint32_t differ_avx2(const std::uint16_t* a,
                                           const std::uint16_t* b) noexcept {
  const __m256i low = _mm256_cmpeq_epi16(load_avx2(a), load_avx2(b));
  const __m256i high = _mm256_cmpeq_epi16(load_avx2(a + 16), load_avx2(b + 16));
  // Packing works within 128-bit lanes; the permutation restores the order.
  const __m256i same = _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xD8);
  return ~static_cast<std::uint32_t>(_mm256_movemask_epi8(same));
}

ROSE_AVX2 inline std::uint32_t differ_avx2(const std::uint32_t* a,
                                           const std::uint32_t* b) noexcept {
  std::uint32_t same = 0;
  for (unsigned part = 0; part < 32; part += 8) {
    const __m256i equal = _mm256_cmpeq_epi32(load_avx2(a + part), load_avx2(b + part));
    same |= static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(equal))) << part;
  }
  return ~same;
}

// Copies 32 elements with one read of each.
template <ElementBits T>
ROSE_AVX2 inline void see_avx2(const T* fresh, T* seen) noexcept {
  for (std::size_t part = 0; part < 32; part += 32 / sizeof(T)) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(seen + part), load_avx2(fresh + part));
  }
}

template <ElementBits T>
ROSE_AVX2 std::size_t find_avx2(const Seen<T>& rows, std::size_t count, std::uint32_t base,
                                std::uint16_t* out) noexcept {
  const auto [fresh, shadow, seen] = rows;
  std::uint16_t* const begin = out;
  std::size_t i = 0;
  for (; i + 32 <= count; i += 32) {
    ask_ahead(fresh + i, 32 * sizeof(T));
    ask_ahead(shadow + i, 32 * sizeof(T));
    see_avx2(fresh + i, seen + i);
    std::uint32_t changed = differ_avx2(seen + i, shadow + i);
    const auto found = static_cast<unsigned>(_mm_popcnt_u32(changed));
    const auto at = base + static_cast<std::uint32_t>(i);
    // Always writes three positions: with 1 % changes a branch for each would cost more.
    for (unsigned k = 0; k < 3; ++k) {
      out[k] = static_cast<std::uint16_t>(at + _tzcnt_u32(changed));
      changed &= changed - 1;
    }
    for (unsigned k = 3; k < found; ++k) {
      out[k] = static_cast<std::uint16_t>(at + _tzcnt_u32(changed));
      changed &= changed - 1;
    }
    out += found;
  }
  const auto done = static_cast<std::uint32_t>(i);
  out += find_changed_portable(rows.from(i), count - i, base + done, out);
  return static_cast<std::size_t>(out - begin);
}

}  // namespace

#define ROSE_FIND(T)                                                                         \
  ROSE_AVX2 std::size_t find_changed_avx2(const Seen<T>& rows, std::size_t count,            \
                                          std::uint32_t base, std::uint16_t* out) noexcept { \
    return find_avx2(rows, count, base, out);                                                \
  }
ROSE_FIND(std::uint8_t)
ROSE_FIND(std::uint16_t)
ROSE_FIND(std::uint32_t)
#undef ROSE_FIND

// Writes eight places at once if they lie within 32 bits, as they usually do.
ROSE_AVX2 void write_places_avx2(const SetPlaces& set, SetWriter& writer) noexcept {
  const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(set.shift));
  const __m256i steps = _mm256_mullo_epi32(_mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0),
                                           _mm256_set1_epi32(static_cast<int>(set.step)));
  std::uint32_t i = 0;
  while (i + 8 <= set.count) {
    const std::uint32_t end = set.place(i + 7) + 1;
    if (end - writer.at() > 32) {
      i += put_next(set, i, writer);
      continue;
    }
    const __m256i numbers =
        _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(set.numbers + i)));
    const __m256i first = _mm256_set1_epi32(static_cast<int>(set.step * i - writer.at()));
    const __m256i places =
        _mm256_add_epi32(_mm256_add_epi32(_mm256_srl_epi32(numbers, shift), steps), first);
    const __m256i bits = _mm256_sllv_epi32(_mm256_set1_epi32(1), places);
    const __m128i four =
        _mm_or_si128(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
    const __m128i two = _mm_or_si128(four, _mm_shuffle_epi32(four, 0x4E));
    const __m128i one = _mm_or_si128(two, _mm_shuffle_epi32(two, 0xB1));
    writer.put_some(static_cast<std::uint32_t>(_mm_cvtsi128_si32(one)), end);
    i += 8;
  }
  while (i < set.count) i += put_next(set, i, writer);
}

__attribute__((target("avx2"))) void add_words_avx2(const void* bits, std::size_t words,
                                                    std::uint64_t first_word, std::uint64_t seed,
                                                    Digest& digest) noexcept {
  const auto* const bytes = static_cast<const std::uint8_t*>(bits);
  __m256i first_keys = keys_avx2(first_word, kStrideFirst, seed);
  __m256i second_keys = keys_avx2(first_word, kStrideSecond, seed);
  const __m256i first_stride = _mm256_set1_epi64x(static_cast<long long>(4 * kStrideFirst));
  const __m256i second_stride = _mm256_set1_epi64x(static_cast<long long>(4 * kStrideSecond));
  __m256i first_sums = _mm256_setzero_si256();
  __m256i second_sums = _mm256_setzero_si256();
  std::size_t i = 0;
  for (; i + 4 <= words; i += 4) {
    const __m256i word = load_avx2(bytes + 8 * i);
    first_sums = _mm256_add_epi64(first_sums, mix_avx2(_mm256_add_epi64(word, first_keys)));
    second_sums = _mm256_add_epi64(second_sums, mix_avx2(_mm256_add_epi64(word, second_keys)));
    first_keys = _mm256_add_epi64(first_keys, first_stride);
    second_keys = _mm256_add_epi64(second_keys, second_stride);
  }
  digest.first += total_avx2(first_sums);
  digest.second += total_avx2(second_sums);
  add_words_portable(bytes + 8 * i, words - i, first_word + i, seed, digest);
}

#undef ROSE_AVX2

}  // namespace rose::transfer

#endif
