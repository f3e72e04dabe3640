// Writes the sections of a block with the threads of a CTA: each thread writes the changes of its
// kElementsOfThread elements.
#pragma once

#include "bit_window.h"
#include "gap_code.h"

namespace rose::kernels {

// A `Source` gives the changes; `word` is one of the mask words of this thread:
//   sent(word), down(word), listed(word)    bit masks of 32 elements
//   number(word, bit)                       the element's number in the section of positions
//   size(word, bit)                         size of a change

// Number of changes before this thread's first change: all of them, the listed ones, and the listed
// ones with a large magnitude.
struct Before {
  u32 changes;
  u32 listed;
  u32 large;
};

ROSE_DEVICE u32 first_bit(u32 bits) { return static_cast<u32>(__ffs(static_cast<int>(bits))) - 1; }
ROSE_DEVICE u32 count_bits(u32 bits) { return static_cast<u32>(__popc(bits)); }

// One thread's part of an Elias-Fano section.
class EliasFanoWriter {
 public:
  ROSE_DEVICE explicit EliasFanoWriter(const EliasFano& section) : section_{section} {}

  // Writes the i-th number.
  ROSE_DEVICE void put(const BitWindow& window, u32 i, u32 number) {
    const u32 low_bits = section_.low_bits;
    high_.put(window, section_.high_at + (number >> low_bits) + i, 1);
    low_.put(window, section_.low_at + i * low_bits, number & low_mask(low_bits));
  }
  ROSE_DEVICE void flush(const BitWindow& window) {
    high_.flush(window);
    low_.flush(window);
  }

 private:
  const EliasFano& section_;
  BitWriter high_;
  BitWriter low_;
};

// In a bitmap, which has no low bits, a number's bit does not depend on the numbers before it.
template <typename Source>
ROSE_DEVICE void put_positions(const Source& source, const ChangeLayout& layout,
                               const BitWindow& window, u32 changes) {
  EliasFanoWriter positions{layout.positions};
#pragma unroll 1
  for (u32 i = 0; i < kWordsOfThread; ++i) {
    const u32 word = threadIdx.x * kWordsOfThread + i;
#pragma unroll 1
    for (u32 rest = source.sent(word); rest != 0; rest &= rest - 1) {
      const u32 before = layout.is_bitmap ? 0 : changes;
      positions.put(window, before, source.number(word, first_bit(rest)));
      ++changes;
    }
  }
  positions.flush(window);
}

template <typename Source>
ROSE_DEVICE void put_signs(const Source& source, const ChangeLayout& layout,
                           const BitWindow& window, u32 changes) {
  BitWriter signs;
#pragma unroll 1
  for (u32 i = 0; i < kWordsOfThread; ++i) {
    const u32 word = threadIdx.x * kWordsOfThread + i;
    const u32 sent = source.sent(word);
    if (sent == 0) continue;
    const u32 down = source.down(word);
#pragma unroll 1
    for (u32 rest = sent; rest != 0; rest &= rest - 1) {
      signs.put(window, layout.signs_at + changes, down >> first_bit(rest) & 1);
      ++changes;
    }
  }
  signs.flush(window);
}

// Writes ranks and magnitudes.
template <typename Source>
ROSE_DEVICE void put_listed(const Source& source, const ChangeLayout& layout,
                            const BitWindow& window, Before before) {
  const u32 bits = layout.counts.magnitude_bits;
  EliasFanoWriter ranks{layout.ranks};
  BitWriter magnitudes;
#pragma unroll 1
  for (u32 i = 0; i < kWordsOfThread; ++i) {
    const u32 word = threadIdx.x * kWordsOfThread + i;
    const u32 sent = source.sent(word);
    if (sent == 0) continue;
#pragma unroll 1
    for (u32 rest = source.listed(word); rest != 0; rest &= rest - 1) {
      const u32 bit = first_bit(rest);
      if (!layout.counts.are_all_listed) {
        ranks.put(window, before.listed, before.changes + count_bits(sent & low_mask(bit)));
      }
      const u32 at = layout.magnitudes_at + before.listed * bits;
      if (window.touches(at, bits)) {
        const u32 magnitude = source.size(word, bit) - layout.listed_from();
        if (magnitude >> bits == 0) magnitudes.put(window, at, magnitude);
      }
      ++before.listed;
    }
    before.changes += count_bits(sent);
  }
  ranks.flush(window);
  magnitudes.flush(window);
}

// Writes large ranks and large magnitudes.
template <typename Source>
ROSE_DEVICE void put_large(const Source& source, const ChangeLayout& layout,
                           const BitWindow& window, Before before) {
  EliasFanoWriter ranks{layout.larges};
  BitWriter values;
#pragma unroll 1
  for (u32 i = 0; i < kWordsOfThread; ++i) {
    const u32 word = threadIdx.x * kWordsOfThread + i;
#pragma unroll 1
    for (u32 rest = source.listed(word); rest != 0; rest &= rest - 1) {
      const u32 magnitude = source.size(word, first_bit(rest)) - layout.listed_from();
      if (magnitude >> layout.counts.magnitude_bits != 0) {
        ranks.put(window, before.large, before.listed);
        values.put(window, layout.large_at + before.large * layout.width, magnitude);
        ++before.large;
      }
      ++before.listed;
    }
  }
  ranks.flush(window);
  values.flush(window);
}

// Number of this thread's large magnitudes.
template <typename Source>
ROSE_DEVICE u32 count_large(const Source& source, const ChangeLayout& layout) {
  u32 large = 0;
#pragma unroll 1
  for (u32 i = 0; i < kWordsOfThread; ++i) {
    const u32 word = threadIdx.x * kWordsOfThread + i;
#pragma unroll 1
    for (u32 rest = source.listed(word); rest != 0; rest &= rest - 1) {
      const u32 magnitude = source.size(word, first_bit(rest)) - layout.listed_from();
      large += magnitude >> layout.counts.magnitude_bits != 0 ? 1 : 0;
    }
  }
  return large;
}

// Writes the sections after the positions, except a block's shape.
template <typename Source>
ROSE_DEVICE void put_changes(const Source& source, const ChangeLayout& layout,
                             const BitWindow& window, const Before& before) {
  put_signs(source, layout, window, before.changes);
  if (layout.counts.listed != 0) put_listed(source, layout, window, before);
  if (layout.counts.large != 0) put_large(source, layout, window, before);
}

}  // namespace rose::kernels
