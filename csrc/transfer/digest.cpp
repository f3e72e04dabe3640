#include "transfer/digest.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "transfer/buffer.h"
#include "transfer/parallel.h"

namespace rose::transfer {

namespace {

// A box is copied in pieces of this size, which stay in the first-level cache.
constexpr std::uint64_t kTileBytes = 8192;
// Fewest bytes per thread.
constexpr std::uint64_t kPartBytes = 1 << 20;
constexpr std::uint64_t kDigestPartsMax = 64;

// Returns the digest of elements `first` to `last` - 1. A digest word begins at element `first`.
template <ElementBits T>
Digest digest_of_part(const Box<const T>& bits, std::uint64_t first, std::uint64_t last,
                      std::uint64_t first_word, const DigestOptions& options) noexcept {
  constexpr std::uint64_t kInWord = 8 / sizeof(T);
  constexpr std::uint64_t kTile = kTileBytes / sizeof(T);
  Digest sums;
  if (bits.is_row()) {
    add_elements(options.isa, bits.data + first, last - first, first_word + first / kInWord,
                 options.seed, sums);
    return sums;
  }
  std::array<T, kTile> room;
  for (std::uint64_t at = first; at < last; at += kTile) {
    const std::size_t count = std::min(kTile, last - at);
    gather(bits, at, count, room.data());
    add_elements(options.isa, room.data(), count, first_word + at / kInWord, options.seed, sums);
  }
  return sums;
}

}  // namespace

template <ElementBits T>
void add_elements(Isa isa, const T* bits, std::size_t count, std::uint64_t first_word,
                  std::uint64_t seed, Digest& digest) noexcept {
  constexpr std::size_t kInWord = 8 / sizeof(T);
  const std::size_t whole = count / kInWord;
  add_words(isa, bits, whole, first_word, seed, digest);
  if (count % kInWord == 0) return;
  std::array<T, kInWord> last{};
  std::copy(bits + whole * kInWord, bits + count, last.begin());
  add_words(Isa::kPortable, last.data(), 1, first_word + whole, seed, digest);
}

template <ElementBits T>
Result<Digest> digest(const Box<const T>& bits, const DigestOptions& options) noexcept {
  constexpr std::uint64_t kInWord = 8 / sizeof(T);
  if (options.first_index % kInWord != 0) {
    return Status::invalid_argument("first_index " + std::to_string(options.first_index) +
                                    ": a part must start at a multiple of " +
                                    std::to_string(kInWord) + " elements");
  }
  const std::uint64_t count = bits.count();
  const std::uint64_t words = count / kInWord;
  const auto parts = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
      std::min<std::uint64_t>(options.threads, words / (kPartBytes / 8)), 1, kDigestPartsMax));
  std::array<Digest, kDigestPartsMax> sums;
  for_each_part(parts, [&](std::uint32_t part) noexcept {
    const std::uint64_t first = kInWord * part_border(words, part, parts);
    const std::uint64_t last =
        part + 1 == parts ? count : kInWord * part_border(words, part + 1, parts);
    sums[part] = digest_of_part(bits, first, last, options.first_index / kInWord, options);
  });
  Digest total;
  for (std::uint32_t part = 0; part < parts; ++part) add(sums[part], total);
  return total;
}

#define ROSE_DIGEST(T)                                                                 \
  template Result<Digest> digest(const Box<const T>&, const DigestOptions&) noexcept;  \
  template void add_elements(Isa, const T*, std::size_t, std::uint64_t, std::uint64_t, \
                             Digest&) noexcept;
ROSE_DIGEST(std::uint8_t)
ROSE_DIGEST(std::uint16_t)
ROSE_DIGEST(std::uint32_t)
#undef ROSE_DIGEST

}  // namespace rose::transfer
