#include "transfer/simd.h"

#include <array>
#include <atomic>
#include <cstring>

#include "transfer/set_writer.h"

namespace rose::transfer {

namespace {

struct NamedIsa {
  std::string_view name;
  Isa isa;
};
constexpr std::array kIsas{NamedIsa{"portable", Isa::kPortable}, NamedIsa{"avx2", Isa::kAvx2},
                           NamedIsa{"avx512", Isa::kAvx512}};

constexpr std::size_t kWordBytes = 8;

std::uint64_t load_word(const void* bits) noexcept {
  std::uint64_t word = 0;
  std::memcpy(&word, bits, sizeof word);
  return word;
}

std::uint64_t mix(std::uint64_t x) noexcept {
  x = (x ^ x >> 30) * kMixFirst;
  x = (x ^ x >> 27) * kMixSecond;
  return x ^ x >> 31;
}

}  // namespace

Isa best_isa() noexcept {
#if defined(__x86_64__)
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
                        __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
  if (has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512vpopcntdq")) {
    return Isa::kAvx512;
  }
  if (has_avx2) return Isa::kAvx2;
#endif
  return Isa::kPortable;
}

std::optional<Isa> isa_named(std::string_view name) noexcept {
  for (const NamedIsa& one : kIsas) {
    if (one.name == name) return one.isa;
  }
  return std::nullopt;
}

std::string_view name_of(Isa isa) noexcept { return kIsas[static_cast<std::size_t>(isa)].name; }

template <ElementBits T>
std::size_t find_changed_portable(const Seen<T>& rows, std::size_t count, std::uint32_t base,
                                  std::uint16_t* out) noexcept {
  constexpr std::size_t kInWord = kWordBytes / sizeof(T);
  const auto [fresh, shadow, seen] = rows;
  if (count != 0) std::memmove(seen, fresh, sizeof(T) * count);
  // Without the fence the compiler may read the original again instead of the copy.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  std::uint16_t* const begin = out;
  std::size_t i = 0;
  for (; i + kInWord <= count; i += kInWord) {
    if (load_word(seen + i) == load_word(shadow + i)) continue;
    for (std::size_t lane = i; lane < i + kInWord; ++lane) {
      *out = static_cast<std::uint16_t>(base + lane);
      out += seen[lane] != shadow[lane] ? 1 : 0;
    }
  }
  for (; i < count; ++i) {
    if (seen[i] != shadow[i]) *out++ = static_cast<std::uint16_t>(base + i);
  }
  return static_cast<std::size_t>(out - begin);
}

void add_words_portable(const void* bits, std::size_t words, std::uint64_t first_word,
                        std::uint64_t seed, Digest& digest) noexcept {
  const auto* const bytes = static_cast<const std::uint8_t*>(bits);
  std::uint64_t first_key = (first_word + 1) * kStrideFirst + seed;
  std::uint64_t second_key = (first_word + 1) * kStrideSecond + seed;
  for (std::size_t i = 0; i < words; ++i) {
    const std::uint64_t word = load_word(bytes + i * kWordBytes);
    digest.first += mix(word + first_key);
    digest.second += mix(word + second_key);
    first_key += kStrideFirst;
    second_key += kStrideSecond;
  }
}

template <ElementBits T>
std::size_t find_changed(Isa isa, const Seen<T>& rows, std::size_t count, std::uint32_t base,
                         std::uint16_t* out) noexcept {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx512:
      return find_changed_avx512(rows, count, base, out);
    case Isa::kAvx2:
      return find_changed_avx2(rows, count, base, out);
#else
    case Isa::kAvx512:
    case Isa::kAvx2:
#endif
    case Isa::kPortable:
      break;
  }
  return find_changed_portable(rows, count, base, out);
}

void add_words(Isa isa, const void* bits, std::size_t words, std::uint64_t first_word,
               std::uint64_t seed, Digest& digest) noexcept {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx512:
      return add_words_avx512(bits, words, first_word, seed, digest);
    case Isa::kAvx2:
      return add_words_avx2(bits, words, first_word, seed, digest);
#else
    case Isa::kAvx512:
    case Isa::kAvx2:
#endif
    case Isa::kPortable:
      break;
  }
  add_words_portable(bits, words, first_word, seed, digest);
}

void write_places(Isa isa, const SetPlaces& set, SetWriter& writer) noexcept {
#if defined(__x86_64__)
  if (isa != Isa::kPortable) return write_places_avx2(set, writer);
#else
  static_cast<void>(isa);
#endif
  for (std::uint32_t i = 0; i < set.count;) i += put_next(set, i, writer);
}

template <ElementBits T>
void take_changes(Isa isa, const TakenChanges<T>& changes, std::uint64_t first_word,
                  Digest& moved) noexcept {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return take_changes_avx512(changes, first_word, moved);
#else
  static_cast<void>(isa);
#endif
  constexpr std::uint32_t kInWord = kWordBytes / sizeof(T);
  for (std::uint32_t i = 0; i < changes.count; ++i) {
    const std::uint32_t at = changes.positions[i] - changes.base;
    changes.differences[i] = static_cast<T>(changes.fresh[at] - changes.shadow[at]);
  }
  Digest sum;  // a store through `moved` at each change would wait for the one before
  // The whole word changes with its first change, so its other changes add nothing.
  for (std::uint32_t i = 0; i < changes.count; ++i) {
    const std::uint32_t place = (changes.positions[i] - changes.base) / kInWord;
    T* const at = changes.shadow + place * kInWord;
    const std::uint64_t now = load_word(changes.fresh + place * kInWord);
    const std::uint64_t old = load_word(at);
    std::memcpy(at, &now, sizeof now);
    const std::uint64_t first_key = (first_word + place + 1) * kStrideFirst;
    const std::uint64_t second_key = (first_word + place + 1) * kStrideSecond;
    sum.first += mix(now + first_key) - mix(old + first_key);
    sum.second += mix(now + second_key) - mix(old + second_key);
  }
  moved.first += sum.first;
  moved.second += sum.second;
}

template <ElementBits T>
std::size_t find_and_add(Isa isa, const Seen<T>& rows, std::size_t words, std::uint32_t base,
                         std::uint64_t first_word, std::uint16_t* out, Digest& digest) noexcept {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) {
    return find_and_add_avx512(rows, words, base, first_word, out, digest);
  }
#endif
  const std::size_t found = find_changed(isa, rows, kWordBytes / sizeof(T) * words, base, out);
  add_words(isa, rows.seen, words, first_word, 0, digest);
  return found;
}

template <ElementBits T>
std::uint32_t find_listed(Isa isa, const T* differences, std::uint32_t count,
                          std::uint16_t* ranks) noexcept {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return find_listed_avx512(differences, count, ranks);
#else
  static_cast<void>(isa);
#endif
  std::uint32_t listed = 0;
  for (std::uint32_t rank = 0; rank < count; ++rank) {
    ranks[listed] = static_cast<std::uint16_t>(rank);
    // The addition turns -1, 0 and 1 into 0, 1 and 2. A difference of 0 does not occur.
    listed += static_cast<T>(differences[rank] + 1) > 2 ? 1U : 0U;
  }
  return listed;
}

#define ROSE_SIMD(T)                                                                        \
  template std::size_t find_changed(Isa, const Seen<T>&, std::size_t, std::uint32_t,        \
                                    std::uint16_t*) noexcept;                               \
  template std::size_t find_changed_portable(const Seen<T>&, std::size_t, std::uint32_t,    \
                                             std::uint16_t*) noexcept;                      \
  template std::size_t find_and_add(Isa, const Seen<T>&, std::size_t, std::uint32_t,        \
                                    std::uint64_t, std::uint16_t*, Digest&) noexcept;       \
  template void take_changes(Isa, const TakenChanges<T>&, std::uint64_t, Digest&) noexcept; \
  template std::uint32_t find_listed(Isa, const T*, std::uint32_t, std::uint16_t*) noexcept;
ROSE_SIMD(std::uint8_t)
ROSE_SIMD(std::uint16_t)
ROSE_SIMD(std::uint32_t)
#undef ROSE_SIMD

}  // namespace rose::transfer
