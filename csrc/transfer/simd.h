// The two loops that see every element, for each instruction set. All give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace rose::transfer {

enum class Isa : std::uint8_t { kPortable, kAvx2, kAvx512 };

// The best that this machine has. Asks the processor each time; callers pass the answer on.
Isa best_isa() noexcept;

std::optional<Isa> isa_named(std::string_view name) noexcept;
std::string_view name_of(Isa isa) noexcept;

// A digest, or a part of one: docs/protocol.md, "Digests". Parts are added up modulo 2^64.
struct Digest {
  std::uint64_t first{0};
  std::uint64_t second{0};

  friend bool operator==(const Digest&, const Digest&) noexcept = default;
};

// How many positions find_changed may write behind the last one it finds.
inline constexpr std::size_t kFoundSlack = 32;

// Writes base + i for every i < count with fresh[i] != shadow[i], ascending, modulo 2^16; returns
// how many. `out` needs room for count + kFoundSlack of them. `isa` must be at most best_isa().
std::size_t find_changed(Isa isa, const std::uint16_t* fresh, const std::uint16_t* shadow,
                         std::size_t count, std::uint32_t base, std::uint16_t* out) noexcept;

// Adds `words` whole words, four elements each, of which the first has the index `first_word`.
void add_words(Isa isa, const std::uint16_t* bits, std::size_t words, std::uint64_t first_word,
               std::uint64_t seed, Digest& digest) noexcept;

// Both of the above over `words` whole words, the sums being of `fresh` with seed 0: while one
// waits for memory, the other computes.
std::size_t find_and_add(Isa isa, const std::uint16_t* fresh, const std::uint16_t* shadow,
                         std::size_t words, std::uint32_t base, std::uint64_t first_word,
                         std::uint16_t* out, Digest& digest) noexcept;

// The mix of docs/protocol.md, shared by every version of add_words.
inline constexpr std::uint64_t kStrideFirst = 0x9E37'79B9'7F4A'7C15;
inline constexpr std::uint64_t kStrideSecond = 0xD1B5'4A32'D192'ED03;
inline constexpr std::uint64_t kMixFirst = 0xBF58'476D'1CE4'E5B9;
inline constexpr std::uint64_t kMixSecond = 0x94D0'49BB'1331'11EB;

// One version each; a machine without the instructions must not call it. They exist on x86-64
// only, and share no inline function or template with the base path: the linker keeps one copy of
// those, and it could be one that this machine cannot run.
std::size_t find_changed_portable(const std::uint16_t* fresh, const std::uint16_t* shadow,
                                  std::size_t count, std::uint32_t base,
                                  std::uint16_t* out) noexcept;
void add_words_portable(const std::uint16_t* bits, std::size_t words, std::uint64_t first_word,
                        std::uint64_t seed, Digest& digest) noexcept;
#if defined(__x86_64__)
std::size_t find_changed_avx2(const std::uint16_t* fresh, const std::uint16_t* shadow,
                              std::size_t count, std::uint32_t base, std::uint16_t* out) noexcept;
void add_words_avx2(const std::uint16_t* bits, std::size_t words, std::uint64_t first_word,
                    std::uint64_t seed, Digest& digest) noexcept;
std::size_t find_changed_avx512(const std::uint16_t* fresh, const std::uint16_t* shadow,
                                std::size_t count, std::uint32_t base, std::uint16_t* out) noexcept;
void add_words_avx512(const std::uint16_t* bits, std::size_t words, std::uint64_t first_word,
                      std::uint64_t seed, Digest& digest) noexcept;
std::size_t find_and_add_avx512(const std::uint16_t* fresh, const std::uint16_t* shadow,
                                std::size_t words, std::uint32_t base, std::uint64_t first_word,
                                std::uint16_t* out, Digest& digest) noexcept;
#endif

}  // namespace rose::transfer
