// The format of a delta: entries, sizes, and legal blocks. docs/protocol.md, "Deltas".
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "transfer/changes.h"

namespace rose::transfer {

static_assert(std::endian::native == std::endian::little, "payloads are little-endian words");

inline constexpr std::uint32_t kBlockElementsDense = 16'384;
inline constexpr std::uint32_t kBlockElementsMax = 65'536;

constexpr bool is_block_elements(std::uint64_t elements) noexcept {
  return elements == kBlockElementsDense || elements == kBlockElementsMax;
}

// kStrat occurs only in the wire encoding: the functions of this file neither read nor write it.
enum class Kind : std::uint32_t { kEmpty = 0, kGap = 1, kRaw = 2, kBitmap = 3, kStrat = 4 };

// One block's row in the table. In a received table `kind` may be outside Kind.
struct Entry {
  Kind kind{Kind::kEmpty};
  std::uint32_t changed{0};
  std::uint32_t listed{0};
  std::uint32_t words{0};

  constexpr std::uint64_t encode() const noexcept {
    return static_cast<std::uint64_t>(kind) | std::uint64_t{changed} << 4 |
           std::uint64_t{listed} << 24 | std::uint64_t{words} << 44;
  }
  static constexpr Entry decode(std::uint64_t bits) noexcept {
    constexpr std::uint64_t kField = (1U << 20) - 1;
    return {.kind = static_cast<Kind>(bits & 15),
            .changed = static_cast<std::uint32_t>(bits >> 4 & kField),
            .listed = static_cast<std::uint32_t>(bits >> 24 & kField),
            .words = static_cast<std::uint32_t>(bits >> 44)};
  }
};

// A delta in memory that somebody else owns.
struct DeltaView {
  std::uint64_t count{0};  // elements
  std::uint32_t block_elements{kBlockElementsMax};
  std::uint32_t width{16};  // bits per element
  std::span<const std::uint64_t> entries;
  std::span<const std::uint32_t> payload;
};

constexpr bool is_width(std::uint32_t width) noexcept {
  return width == 8 || width == 16 || width == 32;
}

// Calls use(T{}) with the element type T of `width` bits, which is_width() accepts.
template <typename Use>
auto with_width(std::uint32_t width, Use use) noexcept {
  if (width == 8) return use(std::uint8_t{});
  if (width == 16) return use(std::uint16_t{});
  return use(std::uint32_t{});
}

constexpr std::uint64_t block_count(std::uint64_t count, std::uint32_t block_elements) noexcept {
  return count / block_elements + (count % block_elements != 0 ? 1 : 0);
}

// Elements of the block that starts at element `first` < count.
constexpr std::uint32_t elements_of_block(std::uint64_t count, std::uint64_t first,
                                          std::uint32_t block_elements) noexcept {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(block_elements, count - first));
}

constexpr std::uint32_t words_of_bits(std::uint32_t bits) noexcept { return (bits + 31) / 32; }

constexpr std::uint32_t raw_words(std::uint32_t elements, std::uint32_t width) noexcept {
  return words_of_bits(elements * width);
}

// Elias-Fano of `count` positions below `universe`, 1 <= count <= universe <= 65,536.
struct EliasFanoShape {
  std::uint32_t low_bits;
  std::uint32_t high_words;
  std::uint32_t low_words;

  constexpr EliasFanoShape(std::uint32_t universe, std::uint32_t count) noexcept
      : low_bits{static_cast<std::uint32_t>(std::bit_width(universe / count)) - 1},
        high_words{words_of_bits(count + ((universe - 1) >> low_bits))},
        low_words{words_of_bits(count * low_bits)} {}
  constexpr std::uint32_t words() const noexcept { return high_words + low_words; }
};

// Words of the positions of a GAP or BITMAP block, if 1 <= changed <= elements.
constexpr std::uint32_t position_words(Kind kind, std::uint32_t elements,
                                       std::uint32_t changed) noexcept {
  return kind == Kind::kGap ? EliasFanoShape{elements, changed}.words() : words_of_bits(elements);
}

// Words of the ranks of `listed` <= changed changes; 0 if all changes or none are listed.
constexpr std::uint32_t rank_words(std::uint32_t changed, std::uint32_t listed) noexcept {
  if (listed == 0 || listed == changed) return 0;
  return EliasFanoShape{changed, listed}.words();
}

// Words of the sections of magnitudes, large ranks and large magnitudes, if `large` of the `listed`
// magnitudes take more than `magnitude_bits` bits.
constexpr std::uint32_t magnitude_words(std::uint32_t listed, std::uint32_t large,
                                        std::uint32_t magnitude_bits,
                                        std::uint32_t width) noexcept {
  std::uint32_t words = words_of_bits(listed * magnitude_bits);
  if (large != 0) words += EliasFanoShape{listed, large}.words() + words_of_bits(width * large);
  return words;
}

}  // namespace rose::transfer
