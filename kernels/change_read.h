// Reads the changes of a block with the threads of a CTA: checks the whole block first, then passes
// each change to a visitor.
#pragma once

#include "block_scan.h"
#include "gap_code.h"
#include "place.h"

namespace rose::kernels {

struct DecodeShared {
  // The high section of c numbers below u has fewer than 2 u bits.
  static constexpr u32 kHighWords = kBlockMax / 16;

  u16 ones_before[kHighWords];   // in the current positions or ranks
  u32 is_listed[kMaskWordsMax];  // bit i for the i-th change
  u16 listed_before[kMaskWordsMax];
  u32 is_large[kMaskWordsMax];  // bit i for the i-th listed change
  u16 large_before[kMaskWordsMax];
  ScanShared scan;
  ChangeLayout layout;
  bool is_good;
};

// The `width` <= 32 bits at bit `at`. Reads only words that contain some of them.
ROSE_DEVICE u32 field(const u32* words, u32 at, u32 width) {
  if (width == 0) return 0;
  const u32 shift = at % 32;
  u64 bits = words[at / 32];
  if (shift + width > 32) bits |= static_cast<u64>(words[at / 32 + 1]) << 32;
  return static_cast<u32>(bits >> shift) & low_mask(width);
}

// Word i of a section of `bits` bits at bit `at`; sections need no alignment.
ROSE_DEVICE u32 section_word(const u32* words, u32 at, u32 bits, u32 i) {
  const u32 rest = bits - 32 * i;
  return field(words, at + 32 * i, rest < 32 ? rest : 32);
}

// Whether the last word of a section of `bits` bits at bit `at` is 0 behind the section.
ROSE_DEVICE bool is_tail_clear(const u32* words, u32 at, u32 bits) {
  const u32 end = at + bits;
  return end % 32 == 0 || words[end / 32] >> end % 32 == 0;
}

ROSE_DEVICE bool is_tail_clear(const u32* words, const EliasFano& section) {
  return is_tail_clear(words, section.high_at, section.high_bits) &&
         is_tail_clear(words, section.low_at, section.count * section.low_bits);
}

// The same for every section of a block.
ROSE_DEVICE bool are_tails_clear(const u32* payload, const ChangeLayout& layout) {
  const ChangeCounts& counts = layout.counts;
  if (!is_tail_clear(payload, layout.positions)) return false;
  if (!is_tail_clear(payload, layout.signs_at, counts.changed)) return false;
  if (counts.listed == 0) return true;
  const u32 bits = counts.listed * counts.magnitude_bits;
  if (bits != 0 && !is_tail_clear(payload, layout.magnitudes_at, bits)) return false;
  if (layout.ranks.count != 0 && !is_tail_clear(payload, layout.ranks)) return false;
  return counts.large == 0 ||
         (is_tail_clear(payload, layout.larges) &&
          is_tail_clear(payload, layout.large_at, counts.large * layout.width));
}

// Finds the layout of a GAP or BITMAP block whose range in the payload is valid. False: the entry
// and the shape contradict each other. One thread calls it.
ROSE_DEVICE bool read_layout(const Entry& entry, const u32* payload, u32 elements, u32 width,
                             ChangeLayout& layout) {
  if (entry.listed > entry.changed || entry.words >= raw_words(elements, width)) return false;
  const bool are_all = entry.listed != 0 && entry.listed == entry.changed;
  layout = first_sections(0, {elements, entry.changed, entry.listed, 0, 0, are_all}, width,
                          entry.kind == kBitmap);
  u32 shape = 0;
  if (entry.listed != 0) {
    if (layout.shape_at / 32 >= entry.words) return false;
    shape = payload[layout.shape_at / 32];
    if ((shape & 0xFF) >= width || shape >> 8 > entry.listed) return false;
  }
  complete(layout, shape >> 8, shape & 0xFF);
  return layout.end == 32 * entry.words && are_tails_clear(payload, layout);
}

// Whether the payload contains the range of an entry, for a block of `elements`.
ROSE_DEVICE bool is_in_payload(const Entry& entry, u32 elements, u64 offset, u64 payload_words) {
  if (entry.changed == 0 || entry.changed > elements) return false;
  return offset <= payload_words && entry.words <= payload_words - offset;
}

// Checks the entry, and finds the layout of a GAP or BITMAP block. All threads of the CTA call it
// and get the same result. False: corrupt.
ROSE_DEVICE bool open_block(const Entry& entry, u32 elements, u32 width, u64 offset,
                            const u32* payload, u64 payload_words, DecodeShared& shared) {
  if (threadIdx.x == 0) {
    shared.is_good = is_in_payload(entry, elements, offset, payload_words);
    if (entry.kind == kRaw) {
      shared.is_good = shared.is_good && entry.listed == 0 &&
                       entry.words == raw_words(elements, width) &&
                       is_tail_clear(payload + offset, 0, elements * width);
    } else {
      shared.is_good = shared.is_good && (entry.kind == kGap || entry.kind == kBitmap) &&
                       read_layout(entry, payload + offset, elements, width, shared.layout);
    }
  }
  __syncthreads();  // separates the first thread's look from the readers of its result
  return shared.is_good;
}

// Sets before[i] to the number of ones in words 0 to i - 1, and returns the total. All threads of
// the CTA call it. `before` is written after the barriers of scan(), when nobody reads its old
// content.
template <typename Word>
ROSE_DEVICE u32 count_ones(const Word& word, u32 count, u16* before, DecodeShared& shared) {
  const u32 share = (count + blockDim.x - 1) / blockDim.x;
  const u32 first = threadIdx.x * share;
  const u32 end = first + share < count ? first + share : count;
  u32 ones = 0;
#pragma unroll 1
  for (u32 i = first; i < end; ++i) ones += static_cast<u32>(__popc(word(i)));
  const Scanned scanned = scan(static_cast<u64>(ones), shared.scan);
  u32 sum = static_cast<u32>(scanned.before);
#pragma unroll 1
  for (u32 i = first; i < end; ++i) {
    before[i] = static_cast<u16>(sum);  // 65,536 only after the last word, which nobody reads
    sum += static_cast<u32>(__popc(word(i)));
  }
  __syncthreads();  // separates writing `before` from reading it, and this scan from the next
  return static_cast<u32>(scanned.total);
}

ROSE_DEVICE u32 count_section(const u32* payload, const EliasFano& section, DecodeShared& shared) {
  const auto word = [&](u32 i) {
    return section_word(payload, section.high_at, section.high_bits, i);
  };
  return count_ones(word, words_of(section.high_bits), shared.ones_before, shared);
}

ROSE_DEVICE u32 count_mask(const u32* mask, u32 bits, u16* before, DecodeShared& shared) {
  return count_ones([&](u32 i) { return mask[i]; }, words_of(bits), before, shared);
}

// All threads of the CTA call it. A barrier must follow.
ROSE_DEVICE void clear_mask(u32* mask, u32 bits) {
#pragma unroll 1
  for (u32 i = threadIdx.x; i < words_of(bits); i += blockDim.x) mask[i] = 0;
}

// The number of ones in a mask before bit i.
ROSE_DEVICE u32 rank_in(const u32* mask, const u16* before, u32 i) {
  return before[i / 32] + static_cast<u32>(__popc(mask[i / 32] & low_mask(i % 32)));
}

// Calls visit(i, number, is_good) for the i-th number; is_good if it is below the universe and
// above the previous one. The high section must have as many ones as there are numbers. A warp
// handles a word, a lane a bit. A bitmap is a section without low bits, where bit p is number p.
template <typename Visit>
ROSE_DEVICE void for_each_number(const u32* payload, const EliasFano& section, bool is_bitmap,
                                 const DecodeShared& shared, const Visit& visit) {
  const u32 lane = threadIdx.x % kWarp;
  const u32 low_bits = section.low_bits;
  const u32 warps = blockDim.x / kWarp;
#pragma unroll 1
  for (u32 word = threadIdx.x / kWarp; word < words_of(section.high_bits); word += warps) {
    const u32 bits = section_word(payload, section.high_at, section.high_bits, word);
    if ((bits >> lane & 1) == 0) continue;
    const u32 i = shared.ones_before[word] + static_cast<u32>(__popc(bits & low_mask(lane)));
    if (is_bitmap) {
      visit(i, word * 32 + lane, true);
      continue;
    }
    const u32 lows = field(payload, section.low_at + i * low_bits, low_bits);
    const u32 number = (word * 32 + lane - i) << low_bits | lows;
    // Only numbers with the same high part, neighbours in the high section, can be out of order.
    const bool is_neighbour =
        lane > 0 ? (bits >> (lane - 1) & 1) != 0
                 : word > 0 && field(payload, section.high_at + 32 * word - 1, 1) != 0;
    const bool is_ascending =
        !is_neighbour || lows > field(payload, section.low_at + (i - 1) * low_bits, low_bits);
    visit(i, number, is_ascending && number < section.universe);
  }
}

// The magnitude of the i-th listed change.
ROSE_DEVICE u32 magnitude(const u32* payload, const ChangeLayout& layout,
                          const DecodeShared& shared, u32 i) {
  if (layout.counts.large != 0 && (shared.is_large[i / 32] >> i % 32 & 1) != 0) {
    const u32 rank = rank_in(shared.is_large, shared.large_before, i);
    return field(payload, layout.large_at + rank * layout.width, layout.width);
  }
  const u32 bits = layout.counts.magnitude_bits;
  return field(payload, layout.magnitudes_at + i * bits, bits);
}

// Whether the i-th listed change, of rank `rank` among the changes, has a possible size.
ROSE_DEVICE bool is_size(const u32* payload, const ChangeLayout& layout, const DecodeShared& shared,
                         u32 i, u32 rank) {
  const u32 half = 1U << (layout.width - 1);
  const u32 most = half - layout.listed_from();
  const u32 one = magnitude(payload, layout, shared, i);
  return one < most || (one == most && field(payload, layout.signs_at + rank, 1) != 0);
}

// Finds the large magnitudes. False: corrupt. All threads of the CTA call it and get the same
// result, as for all functions below.
ROSE_DEVICE bool prepare_large(const u32* payload, const ChangeLayout& layout,
                               DecodeShared& shared) {
  const u32 bits = layout.counts.magnitude_bits;
  clear_mask(shared.is_large, layout.counts.listed);
  if (count_section(payload, layout.larges, shared) != layout.larges.count) return false;
  bool is_bad = false;
  for_each_number(payload, layout.larges, false, shared, [&](u32 i, u32 one, bool is_good) {
    const u32 value = field(payload, layout.large_at + i * layout.width, layout.width);
    if (!is_good || value >> bits == 0 ||
        field(payload, layout.magnitudes_at + one * bits, bits) != 0) {
      is_bad = true;
    } else {
      atomicOr(&shared.is_large[one / 32], 1U << one % 32);
    }
  });
  // Separates setting the bits from counting them.
  if (__syncthreads_or(is_bad) != 0) return false;
  count_mask(shared.is_large, layout.counts.listed, shared.large_before, shared);
  return true;
}

// Finds the listed changes, and checks their sizes.
ROSE_DEVICE bool prepare_listed(const u32* payload, const ChangeLayout& layout,
                                DecodeShared& shared) {
  if (layout.counts.large != 0 && !prepare_large(payload, layout, shared)) return false;
  bool is_bad = false;
  if (layout.counts.are_all_listed) {
#pragma unroll 1
    for (u32 i = threadIdx.x; i < layout.counts.listed; i += blockDim.x) {
      is_bad = is_bad || !is_size(payload, layout, shared, i, i);
    }
    return __syncthreads_or(is_bad) == 0;  // nothing was written; all threads need the result
  }
  clear_mask(shared.is_listed, layout.counts.changed);
  if (count_section(payload, layout.ranks, shared) != layout.ranks.count) return false;
  for_each_number(payload, layout.ranks, false, shared, [&](u32 i, u32 rank, bool is_good) {
    if (!is_good || !is_size(payload, layout, shared, i, rank)) {
      is_bad = true;
    } else {
      atomicOr(&shared.is_listed[rank / 32], 1U << rank % 32);
    }
  });
  // Separates setting the bits from counting them.
  if (__syncthreads_or(is_bad) != 0) return false;
  count_mask(shared.is_listed, layout.counts.changed, shared.listed_before, shared);
  return true;
}

// Whether a pack could write these sections, as far as this shows without the weights. Then
// for_each_change() may be called.
ROSE_DEVICE bool prepare_changes(const u32* payload, const ChangeLayout& layout,
                                 DecodeShared& shared) {
  if (layout.counts.listed != 0 && !prepare_listed(payload, layout, shared)) return false;
  if (count_section(payload, layout.positions, shared) != layout.counts.changed) return false;
  bool is_bad = false;
  for_each_number(payload, layout.positions, layout.is_bitmap, shared,
                  [&](u32, u32, bool is_good) { is_bad = is_bad || !is_good; });
  // Separates the reads of the checks from the caller's next writes.
  return __syncthreads_or(is_bad) == 0;
}

// The difference, modulo 2^width, of the i-th change. Requires prepared sections.
ROSE_DEVICE u32 difference_of(const u32* payload, const ChangeLayout& layout,
                              const DecodeShared& shared, u32 i) {
  const ChangeCounts& counts = layout.counts;
  u32 size = 1;
  if (counts.are_all_listed) {
    size = magnitude(payload, layout, shared, i) + 1;
  } else if (counts.listed != 0 && (shared.is_listed[i / 32] >> i % 32 & 1) != 0) {
    const u32 one = rank_in(shared.is_listed, shared.listed_before, i);
    size = magnitude(payload, layout, shared, one) + 2;
  }
  return field(payload, layout.signs_at + i, 1) != 0 ? 0U - size : size;
}

// Calls visit(i, position, difference) for the i-th change. Requires prepared sections.
template <typename Visit>
ROSE_DEVICE void for_each_change(const u32* payload, const ChangeLayout& layout,
                                 const DecodeShared& shared, const Visit& visit) {
  for_each_number(payload, layout.positions, layout.is_bitmap, shared,
                  [&](u32 i, u32 position, bool) {
                    visit(i, position, difference_of(payload, layout, shared, i));
                  });
}

// ---- RAW ----------------------------------------------------------------------------------------

// Finds the changed elements of a RAW block, in `is_listed` and `listed_before`, and their number.
ROSE_DEVICE u32 count_raw(const u32* payload, u32 elements, u32 width, DecodeShared& shared) {
#pragma unroll 1
  for (u32 i = threadIdx.x; i < 32 * words_of(elements); i += blockDim.x) {
    const bool is_changed = i < elements && load_bits(payload, i, width) != 0;
    const u32 mask = __ballot_sync(kAllLanes, is_changed);
    if (i % 32 == 0) shared.is_listed[i / 32] = mask;
  }
  __syncthreads();  // separates writing the mask from counting it
  return count_mask(shared.is_listed, elements, shared.listed_before, shared);
}

// Calls visit(i, position, difference) for the i-th change of a RAW block, after count_raw().
template <typename Visit>
ROSE_DEVICE void for_each_raw(const u32* payload, u32 elements, u32 width,
                              const DecodeShared& shared, const Visit& visit) {
#pragma unroll 1
  for (u32 i = threadIdx.x; i < elements; i += blockDim.x) {
    if ((shared.is_listed[i / 32] >> i % 32 & 1) == 0) continue;
    visit(rank_in(shared.is_listed, shared.listed_before, i), i, load_bits(payload, i, width));
  }
}

// ---- any block ----------------------------------------------------------------------------------

// Calls visit(i, position, difference) for each change of a block that is not EMPTY, if the whole
// block is valid. False: corrupt, and visit was not called.
template <typename Visit>
ROSE_DEVICE bool read_block(const Entry& entry, u32 elements, u32 width, u64 offset,
                            const u32* payload, u64 payload_words, DecodeShared& shared,
                            const Visit& visit) {
  if (!open_block(entry, elements, width, offset, payload, payload_words, shared)) return false;
  const u32* words = payload + offset;
  if (entry.kind == kRaw) {
    if (count_raw(words, elements, width, shared) != entry.changed) return false;
    for_each_raw(words, elements, width, shared, visit);
    return true;
  }
  if (!prepare_changes(words, shared.layout, shared)) return false;
  for_each_change(words, shared.layout, shared, visit);
  return true;
}

}  // namespace rose::kernels
