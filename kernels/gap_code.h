// The format of a delta: entries, and where the sections of a GAP block lie. docs/protocol.md,
// "Deltas", is the text of it.
#pragma once

#include "device.h"

namespace rose::kernels {

constexpr u32 kEmpty = 0;
constexpr u32 kGap = 1;
constexpr u32 kRaw = 2;
// Never on a wire: delta_pack found no room in the arena. The block did not change its shadow, so
// to whoever reads the delta it is EMPTY, and the next pack finds all of it again.
constexpr u32 kDeferred = 15;

struct Entry {
  u32 kind;
  u32 changed;
  u32 exceptions;
  u32 words;
};

ROSE_HD inline u64 to_bits(const Entry& entry) {
  return entry.kind | static_cast<u64>(entry.changed) << 4 |
         static_cast<u64>(entry.exceptions) << 24 | static_cast<u64>(entry.words) << 44;
}

ROSE_HD inline Entry to_entry(u64 bits) {
  return {static_cast<u32>(bits & 0xF), static_cast<u32>(bits >> 4 & 0xFFFFF),
          static_cast<u32>(bits >> 24 & 0xFFFFF), static_cast<u32>(bits >> 44)};
}

ROSE_HD inline u32 words_of(u32 bits) { return (bits + 31) / 32; }

ROSE_HD inline u32 raw_words(u32 elements) { return (elements + 1) / 2; }

// Elias-Fano of `count` numbers below `universe`, 0 < count <= universe. `high_at` and `low_at` are
// words from the start of the block's payload.
struct EliasFano {
  u32 universe;
  u32 count;
  u32 low_bits;
  u32 high_words;
  u32 high_at;
  u32 low_at;
  u32 end;  // the first word after it
};

ROSE_HD inline u32 high_bits_of(u32 universe, u32 count, u32 low_bits) {
  return count + ((universe - 1) >> low_bits);
}

ROSE_HD inline u32 high_bits_of(const EliasFano& section) {
  return high_bits_of(section.universe, section.count, section.low_bits);
}

ROSE_HD inline EliasFano elias_fano(u32 universe, u32 count, u32 at) {
  const u32 low_bits = floor_log2(universe / count);
  const u32 high_words = words_of(high_bits_of(universe, count, low_bits));
  const u32 low_at = at + high_words;
  return {universe, count, low_bits, high_words, at, low_at, low_at + words_of(count * low_bits)};
}

struct GapLayout {
  EliasFano positions;
  u32 signs_at;
  EliasFano ranks;  // all zero without exceptions
  u32 values_at;
  u32 words;
};

// 0 < changed <= elements, exceptions <= changed.
ROSE_HD inline GapLayout gap_layout(u32 elements, u32 changed, u32 exceptions) {
  GapLayout layout{};
  layout.positions = elias_fano(elements, changed, 0);
  layout.signs_at = layout.positions.end;
  layout.values_at = layout.signs_at + words_of(changed);
  layout.words = layout.values_at;
  if (exceptions != 0) {
    layout.ranks = elias_fano(changed, exceptions, layout.values_at);
    layout.values_at = layout.ranks.end;
    layout.words = layout.values_at + words_of(16 * exceptions);
  }
  return layout;
}

// How one element changes.
struct Change {
  bool is_xor;
  u16 amount;  // what is XORed or, modulo 2^16, added
};

ROSE_HD inline u16 changed_bits(u16 old, Change change, bool is_undo) {
  if (change.is_xor) return static_cast<u16>(old ^ change.amount);
  return static_cast<u16>(is_undo ? old - change.amount : old + change.amount);
}

constexpr u16 kStepUp = 1;
constexpr u16 kStepDown = 0xFFFF;

}  // namespace rose::kernels
