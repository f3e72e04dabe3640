#include "transfer/simd.h"

#if defined(__x86_64__)

// g++ 12 warns of "uninitialised" values inside its own avx512fintrin.h.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include "transfer/prefetch.h"

namespace rose::transfer {

namespace {

#define ROSE_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,popcnt")))

// Up to this many changes among 64 elements are written as one register.
constexpr std::size_t kFewFound = 8;

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

// The end of the positions written so far, and, in every lane of `first`, the position of the first
// of the next 64 elements.
struct FoundAvx512 {
  std::uint16_t* out;
  __m128i first;
};

ROSE_AVX512 inline FoundAvx512 found_avx512(std::uint32_t base, std::uint16_t* out) noexcept {
  return {out, _mm_set1_epi16(static_cast<short>(base))};
}

// Writes the positions of the set bits, ascending. Stores 8 positions, or 64 if more than 8 bits
// are set; those behind the last are meaningless.
ROSE_AVX512 inline void take_changed_avx512(std::uint64_t changed, FoundAvx512& found) noexcept {
  const __m512i lanes = _mm512_set_epi64(
      0x3F3E'3D3C'3B3A'3938, 0x3736'3534'3332'3130, 0x2F2E'2D2C'2B2A'2928, 0x2726'2524'2322'2120,
      0x1F1E'1D1C'1B1A'1918, 0x1716'1514'1312'1110, 0x0F0E'0D0C'0B0A'0908, 0x0706'0504'0302'0100);
  // Compressed into a register and then stored: compressing to memory is slow on some processors.
  const __m512i set = _mm512_maskz_compress_epi8(changed, lanes);
  const auto count = static_cast<std::size_t>(_mm_popcnt_u64(changed));
  if (count > kFewFound) {
    const __m512i firsts = _mm512_broadcastw_epi16(found.first);
    const __m512i low = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(set));
    const __m512i high = _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(set, 1));
    _mm512_storeu_si512(found.out, _mm512_add_epi16(low, firsts));
    _mm512_storeu_si512(found.out + 32, _mm512_add_epi16(high, firsts));
  } else {
    const __m128i few = _mm_cvtepu8_epi16(_mm512_castsi512_si128(set));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(found.out), _mm_add_epi16(few, found.first));
  }
  found.out += count;
  found.first = _mm_add_epi16(found.first, _mm_set1_epi16(64));
}

// Both sums per lane, and the keys of the next eight words.
struct SumsAvx512 {
  __m512i first;
  __m512i second;
  __m512i first_keys;
  __m512i second_keys;
};

ROSE_AVX512 inline SumsAvx512 sums_avx512(std::uint64_t first_word, std::uint64_t seed) noexcept {
  return {_mm512_setzero_si512(), _mm512_setzero_si512(),
          keys_avx512(first_word, kStrideFirst, seed),
          keys_avx512(first_word, kStrideSecond, seed)};
}

ROSE_AVX512 inline void add_avx512(__m512i words, SumsAvx512& sums) noexcept {
  const __m512i first_stride = _mm512_set1_epi64(static_cast<long long>(8 * kStrideFirst));
  const __m512i second_stride = _mm512_set1_epi64(static_cast<long long>(8 * kStrideSecond));
  sums.first = _mm512_add_epi64(sums.first, mix_avx512(_mm512_add_epi64(words, sums.first_keys)));
  sums.second =
      _mm512_add_epi64(sums.second, mix_avx512(_mm512_add_epi64(words, sums.second_keys)));
  sums.first_keys = _mm512_add_epi64(sums.first_keys, first_stride);
  sums.second_keys = _mm512_add_epi64(sums.second_keys, second_stride);
}

// Not _mm512_reduce_add_epi64: that of g++ 12 adds signed numbers, and these sums overflow.
ROSE_AVX512 inline std::uint64_t total_avx512(__m512i sums) noexcept {
  const __m256i four =
      _mm256_add_epi64(_mm512_castsi512_si256(sums), _mm512_extracti64x4_epi64(sums, 1));
  const __m128i two =
      _mm_add_epi64(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1));
  return static_cast<std::uint64_t>(_mm_cvtsi128_si64(two)) +
         static_cast<std::uint64_t>(_mm_extract_epi64(two, 1));
}

ROSE_AVX512 inline void add_to_digest_avx512(const SumsAvx512& sums, Digest& digest) noexcept {
  digest.first += total_avx512(sums.first);
  digest.second += total_avx512(sums.second);
}

// Returns a bit for each of 64 pairs of elements, set if the two differ.
ROSE_AVX512 inline std::uint64_t differ_avx512(const std::uint8_t* a,
                                               const std::uint8_t* b) noexcept {
  return _mm512_cmpneq_epu8_mask(_mm512_loadu_si512(a), _mm512_loadu_si512(b));
}

ROSE_AVX512 inline std::uint64_t differ_avx512(const std::uint16_t* a,
                                               const std::uint16_t* b) noexcept {
  const std::uint64_t low = _mm512_cmpneq_epu16_mask(_mm512_loadu_si512(a), _mm512_loadu_si512(b));
  const std::uint64_t high =
      _mm512_cmpneq_epu16_mask(_mm512_loadu_si512(a + 32), _mm512_loadu_si512(b + 32));
  return low | high << 32;
}

ROSE_AVX512 inline std::uint64_t differ_avx512(const std::uint32_t* a,
                                               const std::uint32_t* b) noexcept {
  std::uint64_t changed = 0;
  for (unsigned part = 0; part < 64; part += 16) {
    const std::uint64_t here =
        _mm512_cmpneq_epu32_mask(_mm512_loadu_si512(a + part), _mm512_loadu_si512(b + part));
    changed |= here << part;
  }
  return changed;
}

// Copies 64 elements with one read of each.
template <ElementBits T>
ROSE_AVX512 inline void see_avx512(const T* fresh, T* seen) noexcept {
  for (std::size_t part = 0; part < 64; part += 64 / sizeof(T)) {
    _mm512_storeu_si512(seen + part, _mm512_loadu_si512(fresh + part));
  }
}

template <ElementBits T>
ROSE_AVX512 std::size_t find_avx512(const Seen<T>& rows, std::size_t count, std::uint32_t base,
                                    std::uint16_t* out) noexcept {
  const auto [fresh, shadow, seen] = rows;
  FoundAvx512 found = found_avx512(base, out);
  std::size_t i = 0;
  for (; i + 64 <= count; i += 64) {
    ask_ahead(fresh + i, 64 * sizeof(T));
    ask_ahead(shadow + i, 64 * sizeof(T));
    see_avx512(fresh + i, seen + i);
    take_changed_avx512(differ_avx512(seen + i, shadow + i), found);
  }
  found.out += find_changed_portable(rows.from(i), count - i, base + static_cast<std::uint32_t>(i),
                                     found.out);
  return static_cast<std::size_t>(found.out - out);
}

template <ElementBits T>
ROSE_AVX512 std::size_t find_add_avx512(const Seen<T>& rows, std::size_t words, std::uint32_t base,
                                        std::uint64_t first_word, std::uint16_t* out,
                                        Digest& digest) noexcept {
  constexpr std::size_t kInWord = 8 / sizeof(T);
  constexpr std::size_t kStepWords = 64 / kInWord;  // words of 64 elements
  FoundAvx512 found = found_avx512(base, out);
  SumsAvx512 sums = sums_avx512(first_word, 0);
  std::size_t i = 0;
  for (; i + kStepWords <= words; i += kStepWords) {
    const auto [fresh, shadow, seen] = rows.from(kInWord * i);
    ask_ahead(fresh, 64 * sizeof(T));
    ask_ahead(shadow, 64 * sizeof(T));
    see_avx512(fresh, seen);
    take_changed_avx512(differ_avx512(seen, shadow), found);
    for (std::size_t part = 0; part < 64; part += 64 / sizeof(T)) {
      add_avx512(_mm512_loadu_si512(seen + part), sums);
    }
  }
  add_to_digest_avx512(sums, digest);
  const std::size_t done = kInWord * i;
  found.out += find_changed_portable(rows.from(done), kInWord * (words - i),
                                     base + static_cast<std::uint32_t>(done), found.out);
  add_words_portable(rows.seen + done, words - i, first_word + i, 0, digest);
  return static_cast<std::size_t>(found.out - out);
}

// Returns a bit for each of up to 64 differences, set if the difference is neither 1 nor -1. Adding
// 1 turns -1, 0 and 1 into 0, 1 and 2; a difference of 0 does not occur. Differences whose bit in
// `here` is clear are not read.
ROSE_AVX512 inline std::uint64_t listed_avx512(const std::uint8_t* differences,
                                               std::uint64_t here) noexcept {
  const __m512i loaded = _mm512_maskz_loadu_epi8(here, differences);
  return _mm512_mask_cmpgt_epu8_mask(here, _mm512_add_epi8(loaded, _mm512_set1_epi8(1)),
                                     _mm512_set1_epi8(2));
}

ROSE_AVX512 inline std::uint64_t listed_avx512(const std::uint16_t* differences,
                                               std::uint64_t here) noexcept {
  std::uint64_t listed = 0;
  for (unsigned part = 0; part < 64; part += 32) {
    const auto lanes = static_cast<__mmask32>(here >> part);
    const __m512i loaded = _mm512_maskz_loadu_epi16(lanes, differences + part);
    const std::uint64_t found = _mm512_mask_cmpgt_epu16_mask(
        lanes, _mm512_add_epi16(loaded, _mm512_set1_epi16(1)), _mm512_set1_epi16(2));
    listed |= found << part;
  }
  return listed;
}

ROSE_AVX512 inline std::uint64_t listed_avx512(const std::uint32_t* differences,
                                               std::uint64_t here) noexcept {
  std::uint64_t listed = 0;
  for (unsigned part = 0; part < 64; part += 16) {
    const auto lanes = static_cast<__mmask16>(here >> part);
    const __m512i loaded = _mm512_maskz_loadu_epi32(lanes, differences + part);
    const std::uint64_t found = _mm512_mask_cmpgt_epu32_mask(
        lanes, _mm512_add_epi32(loaded, _mm512_set1_epi32(1)), _mm512_set1_epi32(2));
    listed |= found << part;
  }
  return listed;
}

template <ElementBits T>
ROSE_AVX512 std::uint32_t list_avx512(const T* differences, std::uint32_t count,
                                      std::uint16_t* ranks) noexcept {
  FoundAvx512 found = found_avx512(0, ranks);
  for (std::uint32_t i = 0; i < count; i += 64) {
    const std::uint32_t left = count - i;
    const std::uint64_t here = left >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << left) - 1;
    take_changed_avx512(listed_avx512(differences + i, here), found);
  }
  return static_cast<std::uint32_t>(found.out - ranks);
}

// The words of eight changes, before and after, and their places.
struct EightAvx512 {
  __m512i fresh;
  __m512i old;
  __m512i places;   // indices of the words in the piece
  __m512i shifts;   // bit offsets of the elements in their words
  __mmask8 moving;  // set for the first change of each word
};

// A changed word, after and before.
struct PairAvx512 {
  std::uint64_t words[2];
};

// Loads changes i to i + 7. The last lane of `last` has the place of change i - 1 on entry, and the
// place of change i + 7 on return.
template <ElementBits T>
ROSE_AVX512 inline EightAvx512 eight_avx512(const TakenChanges<T>& changes, std::uint32_t i,
                                            const PairAvx512* pairs, __m128i& last) noexcept {
  constexpr int kInWord = 8 / sizeof(T);
  constexpr int kPlaceShift = kInWord == 8 ? 3 : kInWord == 4 ? 2 : 1;
  const std::uint32_t left = changes.count - i;
  const auto here = static_cast<__mmask8>(left >= 8 ? 0xFF : (1U << left) - 1);
  const __m128i base = _mm_set1_epi16(static_cast<short>(changes.base));
  const __m128i at = _mm_sub_epi16(_mm_maskz_loadu_epi16(here, changes.positions + i), base);
  const __m128i places = _mm_srli_epi16(at, kPlaceShift);
  const __m128i before = _mm_alignr_epi8(places, last, 14);
  last = places;
  const __m128i lanes = _mm_and_si128(at, _mm_set1_epi16(kInWord - 1));
  const __m128i shifts = _mm_mullo_epi16(lanes, _mm_set1_epi16(kWidth<T>));
  const __m512i low = _mm512_loadu_si512(pairs + i);
  const __m512i high = _mm512_loadu_si512(pairs + i + 4);
  const __m512i firsts = _mm512_set_epi64(14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i seconds = _mm512_set_epi64(15, 13, 11, 9, 7, 5, 3, 1);
  return {_mm512_permutex2var_epi64(low, firsts, high),
          _mm512_permutex2var_epi64(low, seconds, high), _mm512_cvtepu16_epi64(places),
          _mm512_cvtepu16_epi64(shifts), _mm_mask_cmpneq_epi16_mask(here, places, before)};
}

ROSE_AVX512 inline void write_eight_avx512(__m512i numbers, std::uint8_t* out) noexcept {
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm512_cvtepi64_epi8(numbers));
}

ROSE_AVX512 inline void write_eight_avx512(__m512i numbers, std::uint16_t* out) noexcept {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi64_epi16(numbers));
}

ROSE_AVX512 inline void write_eight_avx512(__m512i numbers, std::uint32_t* out) noexcept {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi64_epi32(numbers));
}

// Adds the effect of eight words on the digest.
ROSE_AVX512 inline void move_eight_avx512(const EightAvx512& eight, std::uint64_t first_word,
                                          __m512i& first, __m512i& second) noexcept {
  const __m512i first_stride = _mm512_set1_epi64(static_cast<long long>(kStrideFirst));
  const __m512i second_stride = _mm512_set1_epi64(static_cast<long long>(kStrideSecond));
  const __m512i base = _mm512_set1_epi64(static_cast<long long>(first_word + 1));
  // In lanes that are not `moving`, both words are made equal, so they add nothing.
  const __m512i old = _mm512_mask_mov_epi64(eight.fresh, eight.moving, eight.old);
  const __m512i index = _mm512_add_epi64(base, eight.places);
  const __m512i first_key = _mm512_mullo_epi64(index, first_stride);
  const __m512i second_key = _mm512_mullo_epi64(index, second_stride);
  first = _mm512_add_epi64(first, mix_avx512(_mm512_add_epi64(eight.fresh, first_key)));
  first = _mm512_sub_epi64(first, mix_avx512(_mm512_add_epi64(old, first_key)));
  second = _mm512_add_epi64(second, mix_avx512(_mm512_add_epi64(eight.fresh, second_key)));
  second = _mm512_sub_epi64(second, mix_avx512(_mm512_add_epi64(old, second_key)));
}

// Stores limit the speed: there are two per change, and one per eight differences.
template <ElementBits T>
ROSE_AVX512 void take_avx512(const TakenChanges<T>& changes, std::uint64_t first_word,
                             Digest& moved) noexcept {
  constexpr std::uint32_t kInWord = 8 / sizeof(T);
  PairAvx512 pairs[kTakenMax + 8];  // the last step reads eight, and uses the valid ones
  for (std::uint32_t i = 0; i < changes.count; ++i) {
    const std::uint32_t at = (changes.positions[i] - changes.base) & ~(kInWord - 1);
    const __m128i now = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(changes.fresh + at));
    const __m128i old = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(changes.shadow + at));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(pairs[i].words), _mm_unpacklo_epi64(now, old));
  }
  __m512i first = _mm512_setzero_si512();
  __m512i second = _mm512_setzero_si512();
  __m128i last = _mm_set1_epi16(-1);  // no place
  for (std::uint32_t i = 0; i < changes.count; i += 8) {
    const EightAvx512 eight = eight_avx512(changes, i, pairs, last);
    write_eight_avx512(_mm512_sub_epi64(_mm512_srlv_epi64(eight.fresh, eight.shifts),
                                        _mm512_srlv_epi64(eight.old, eight.shifts)),
                       changes.differences + i);
    move_eight_avx512(eight, first_word, first, second);
  }
  for (std::uint32_t i = 0; i < changes.count; ++i) {
    const std::uint32_t at = changes.positions[i] - changes.base;
    changes.shadow[at] = changes.fresh[at];
  }
  moved.first += total_avx512(first);
  moved.second += total_avx512(second);
}

}  // namespace

ROSE_AVX512 void add_words_avx512(const void* bits, std::size_t words, std::uint64_t first_word,
                                  std::uint64_t seed, Digest& digest) noexcept {
  const auto* const bytes = static_cast<const std::uint8_t*>(bits);
  SumsAvx512 sums = sums_avx512(first_word, seed);
  std::size_t i = 0;
  for (; i + 8 <= words; i += 8) add_avx512(_mm512_loadu_si512(bytes + 8 * i), sums);
  add_to_digest_avx512(sums, digest);
  add_words_portable(bytes + 8 * i, words - i, first_word + i, seed, digest);
}

#define ROSE_FIND(T)                                                                             \
  ROSE_AVX512 std::size_t find_changed_avx512(const Seen<T>& rows, std::size_t count,            \
                                              std::uint32_t base, std::uint16_t* out) noexcept { \
    return find_avx512(rows, count, base, out);                                                  \
  }                                                                                              \
  ROSE_AVX512 std::size_t find_and_add_avx512(const Seen<T>& rows, std::size_t words,            \
                                              std::uint32_t base, std::uint64_t first_word,      \
                                              std::uint16_t* out, Digest& digest) noexcept {     \
    return find_add_avx512(rows, words, base, first_word, out, digest);                          \
  }                                                                                              \
  ROSE_AVX512 void take_changes_avx512(const TakenChanges<T>& changes, std::uint64_t first_word, \
                                       Digest& moved) noexcept {                                 \
    take_avx512(changes, first_word, moved);                                                     \
  }                                                                                              \
  ROSE_AVX512 std::uint32_t find_listed_avx512(const T* differences, std::uint32_t count,        \
                                               std::uint16_t* ranks) noexcept {                  \
    return list_avx512(differences, count, ranks);                                               \
  }
ROSE_FIND(std::uint8_t)
ROSE_FIND(std::uint16_t)
ROSE_FIND(std::uint32_t)
#undef ROSE_FIND

#undef ROSE_AVX512

}  // namespace rose::transfer

#endif
