// The loops over all elements or all changes, for each instruction set. All give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "transfer/changes.h"

namespace rose::transfer {

struct SetPlaces;
class SetWriter;

enum class Isa : std::uint8_t { kPortable, kAvx2, kAvx512 };

// Returns the best instruction set of this machine. Queries the processor each time, so callers
// pass the result on.
Isa best_isa() noexcept;

std::optional<Isa> isa_named(std::string_view name) noexcept;
std::string_view name_of(Isa isa) noexcept;

// A digest, or a part of a digest: docs/protocol.md, "Digests". Parts add up modulo 2^64.
struct Digest {
  std::uint64_t first{0};
  std::uint64_t second{0};

  friend bool operator==(const Digest&, const Digest&) noexcept = default;
};

// Number of positions that find_changed() may write behind the last position found.
inline constexpr std::size_t kFoundSlack = kChangesSlack;

// Two versions of a row to compare. Another thread may write `fresh` meanwhile, so each of its
// elements is read exactly once, and copied to `seen`: what is decided afterwards is decided from
// `seen`. Both may be the same memory.
template <ElementBits T>
struct Seen {
  const T* fresh{nullptr};
  const T* shadow{nullptr};
  T* seen{nullptr};

  Seen from(std::size_t element) const noexcept {
    return {fresh + element, shadow + element, seen + element};
  }
};

// Copies `count` elements, and writes base + i for every i < count with seen[i] != shadow[i],
// ascending, modulo 2^16; returns their number. `out` needs room for count + kFoundSlack. `isa`
// must be at most best_isa().
template <ElementBits T>
std::size_t find_changed(Isa isa, const Seen<T>& rows, std::size_t count, std::uint32_t base,
                         std::uint16_t* out) noexcept;

// Adds the digest of `words` whole 8-byte words, of which the first has the index `first_word`.
// `bits` need not be aligned to words.
void add_words(Isa isa, const void* bits, std::size_t words, std::uint64_t first_word,
               std::uint64_t seed, Digest& digest) noexcept;

// Does the work of find_changed() and add_words() for `words` whole words in one loop: one part
// computes while the other waits for memory. Adds the digest of `seen`, with seed 0.
template <ElementBits T>
std::size_t find_and_add(Isa isa, const Seen<T>& rows, std::size_t words, std::uint32_t base,
                         std::uint64_t first_word, std::uint16_t* out, Digest& digest) noexcept;

// Maximum changes in one call of take_changes().
inline constexpr std::size_t kTakenMax = 512;

// Some changes in a piece of a tensor. The piece consists of whole words.
template <ElementBits T>
struct TakenChanges {
  const T* fresh{nullptr};
  T* shadow{nullptr};
  const std::uint16_t* positions{nullptr};  // ascending, `base` + index in the piece
  std::uint32_t base{0};
  std::uint32_t count{0};
  T* differences{nullptr};  // room for count + kChangesSlack
};

// Writes the differences, updates the shadow, and adds the change of the shadow's digest, with seed
// 0, to `moved`. The first word of the piece has the index `first_word`.
template <ElementBits T>
void take_changes(Isa isa, const TakenChanges<T>& changes, std::uint64_t first_word,
                  Digest& moved) noexcept;

// Writes the ranks (indices) of all differences other than 1 and -1, ascending; returns their
// number. `ranks` needs room for count + kFoundSlack.
template <ElementBits T>
std::uint32_t find_listed(Isa isa, const T* differences, std::uint32_t count,
                          std::uint16_t* ranks) noexcept;

// Writes the bits at all places of a set.
void write_places(Isa isa, const SetPlaces& set, SetWriter& writer) noexcept;

// Constants of the mix in docs/protocol.md, shared by every version of add_words().
inline constexpr std::uint64_t kStrideFirst = 0x9E37'79B9'7F4A'7C15;
inline constexpr std::uint64_t kStrideSecond = 0xD1B5'4A32'D192'ED03;
inline constexpr std::uint64_t kMixFirst = 0xBF58'476D'1CE4'E5B9;
inline constexpr std::uint64_t kMixSecond = 0x94D0'49BB'1331'11EB;

// One version per instruction set, to be called only on a machine that has the instructions. The
// AVX versions exist only on x86-64. The code that they share with the portable versions is
// compiled without AVX: the linker keeps one copy of an inline function, and every machine must be
// able to run it.
template <ElementBits T>
std::size_t find_changed_portable(const Seen<T>& rows, std::size_t count, std::uint32_t base,
                                  std::uint16_t* out) noexcept;
void add_words_portable(const void* bits, std::size_t words, std::uint64_t first_word,
                        std::uint64_t seed, Digest& digest) noexcept;
#if defined(__x86_64__)
void write_places_avx2(const SetPlaces& set, SetWriter& writer) noexcept;
void add_words_avx2(const void* bits, std::size_t words, std::uint64_t first_word,
                    std::uint64_t seed, Digest& digest) noexcept;
void add_words_avx512(const void* bits, std::size_t words, std::uint64_t first_word,
                      std::uint64_t seed, Digest& digest) noexcept;
// Not templates, which would lose their instruction set where they are instantiated.
#define ROSE_FIND(T)                                                                          \
  std::size_t find_changed_avx2(const Seen<T>& rows, std::size_t count, std::uint32_t base,   \
                                std::uint16_t* out) noexcept;                                 \
  std::size_t find_changed_avx512(const Seen<T>& rows, std::size_t count, std::uint32_t base, \
                                  std::uint16_t* out) noexcept;                               \
  std::size_t find_and_add_avx512(const Seen<T>& rows, std::size_t words, std::uint32_t base, \
                                  std::uint64_t first_word, std::uint16_t* out,               \
                                  Digest& digest) noexcept;                                   \
  void take_changes_avx512(const TakenChanges<T>& changes, std::uint64_t first_word,          \
                           Digest& moved) noexcept;                                           \
  std::uint32_t find_listed_avx512(const T* differences, std::uint32_t count,                 \
                                   std::uint16_t* ranks) noexcept;
ROSE_FIND(std::uint8_t)
ROSE_FIND(std::uint16_t)
ROSE_FIND(std::uint32_t)
#undef ROSE_FIND
#endif

}  // namespace rose::transfer
