// The format of a delta: entries, and the layout of the sections of a GAP or BITMAP block.
// Specified in docs/protocol.md, "Deltas".
#pragma once

#include "device.h"

namespace rose::kernels {

constexpr u32 kEmpty = 0;
constexpr u32 kGap = 1;
constexpr u32 kRaw = 2;
constexpr u32 kBitmap = 3;
// Never on a wire: delta_pack found no room in the arena and did not change the block's shadow, so
// the next pack finds all its changes again. Readers refuse such a block as corrupt.
constexpr u32 kDeferred = 15;

struct Entry {
  u32 kind;
  u32 changed;
  u32 listed;
  u32 words;
};

ROSE_HD inline u64 to_bits(const Entry& entry) {
  return entry.kind | static_cast<u64>(entry.changed) << 4 | static_cast<u64>(entry.listed) << 24 |
         static_cast<u64>(entry.words) << 44;
}

ROSE_HD inline Entry to_entry(u64 bits) {
  return {static_cast<u32>(bits & 0xF), static_cast<u32>(bits >> 4 & 0xFFFFF),
          static_cast<u32>(bits >> 24 & 0xFFFFF), static_cast<u32>(bits >> 44)};
}

ROSE_HD inline u32 words_of(u32 bits) { return (bits + 31) / 32; }

ROSE_HD inline u32 raw_words(u32 elements, u32 width) { return words_of(elements * width); }

// ---- differences --------------------------------------------------------------------------------

// True if a nonzero difference modulo 2^width is negative.
ROSE_HD inline bool is_down(u32 difference, u32 width) {
  return (difference >> (width - 1) & 1) != 0;
}

// The absolute value of a difference, 1 to 2^(width - 1).
ROSE_HD inline u32 size_of(u32 difference, u32 width) {
  return is_down(difference, width) ? (0U - difference) & low_mask(width) : difference;
}

// ---- sections -----------------------------------------------------------------------------------

// Returns the first multiple of 32 from `at` on, where a section may begin.
ROSE_HD inline u32 border(u32 at) { return (at + 31) & ~u32{31}; }

// Elias-Fano code of `count` numbers below `universe`, 0 < count <= universe. `high_at`, `low_at`
// and `end` are in bits from the start of the block's payload.
struct EliasFano {
  u32 universe;
  u32 count;
  u32 low_bits;
  u32 high_bits;
  u32 high_at;
  u32 low_at;
  u32 end;  // first bit behind the section
};

ROSE_HD inline EliasFano elias_fano(u32 universe, u32 count, u32 at) {
  // floor(log2(universe / count)), without a division.
  u32 low_bits = floor_log2(universe) - floor_log2(count);
  if (static_cast<u64>(count) << low_bits > universe) --low_bits;
  const u32 high_bits = count + ((universe - 1) >> low_bits);
  const u32 low_at = border(at + high_bits);
  return {universe, count, low_bits, high_bits, at, low_at, border(low_at + count * low_bits)};
}

ROSE_HD inline u32 elias_fano_words(u32 universe, u32 count) {
  return elias_fano(universe, count, 0).end / 32;
}

// The counts that decide the encoding of a block.
struct ChangeCounts {
  u32 universe;  // elements
  u32 changed;   // 1 to `universe`
  u32 listed;    // 0 to `changed`
  u32 large;     // 0 to `listed`
  u32 magnitude_bits;
  bool are_all_listed;  // then a magnitude is size - 1, otherwise size - 2
};

struct ChangeLayout {
  ChangeCounts counts;
  u32 width;
  bool is_bitmap;  // then `positions` is a bitmap from high_at on, with one bit per element
  EliasFano positions;
  u32 signs_at;
  u32 shape_at;     // the shape and all later sections exist only if changes are listed
  EliasFano ranks;  // a count of 0 if all or none are listed
  u32 magnitudes_at;
  EliasFano larges;  // a count of 0 if no magnitude is large
  u32 large_at;
  u32 end;

  // The difference between a size and its magnitude.
  ROSE_HD u32 listed_from() const { return counts.are_all_listed ? 1 : 2; }
};

// Lays out the sections from bit `at` on, up to the signs. complete() adds the later sections once
// their counts are known.
ROSE_HD inline ChangeLayout first_sections(u32 at, const ChangeCounts& counts, u32 width,
                                           bool is_bitmap) {
  ChangeLayout layout{};
  layout.counts = counts;
  layout.width = width;
  layout.is_bitmap = is_bitmap;
  if (is_bitmap) {
    layout.positions = {
        counts.universe, counts.changed, 0, counts.universe, at, at, border(at + counts.universe)};
  } else {
    layout.positions = elias_fano(counts.universe, counts.changed, at);
  }
  layout.signs_at = layout.positions.end;
  layout.shape_at = border(layout.signs_at + counts.changed);
  layout.end = layout.shape_at;
  return layout;
}

// Sets `large` and `magnitude_bits`, which a reader finds only in the payload, and adds the later
// sections.
ROSE_HD inline void complete(ChangeLayout& layout, u32 large, u32 magnitude_bits) {
  ChangeCounts& counts = layout.counts;
  counts.large = large;
  counts.magnitude_bits = magnitude_bits;
  if (counts.listed == 0) return;
  u32 at = layout.shape_at + 32;
  if (!counts.are_all_listed) {
    layout.ranks = elias_fano(counts.changed, counts.listed, at);
    at = layout.ranks.end;
  }
  layout.magnitudes_at = at;
  at = border(at + counts.listed * magnitude_bits);
  if (large != 0) {
    layout.larges = elias_fano(counts.listed, large, at);
    layout.large_at = layout.larges.end;
    at = border(layout.large_at + large * layout.width);
  }
  layout.end = at;
}

ROSE_HD inline ChangeLayout change_layout(u32 at, const ChangeCounts& counts, u32 width,
                                          bool is_bitmap) {
  ChangeLayout layout = first_sections(at, counts, width, is_bitmap);
  complete(layout, counts.large, counts.magnitude_bits);
  return layout;
}

}  // namespace rose::kernels
