// Reading one block of a delta by the threads of a CTA: checked as a whole first, then each change
// handed to whoever wants it.
#pragma once

#include "block_scan.h"
#include "gap_code.h"

namespace rose::kernels {

template <u32 kBlock>
struct DecodeShared {
  static constexpr u32 kMaskWords = kBlock / 32;
  // The high section of c numbers below u has fewer than 2 u bits.
  static constexpr u32 kHighWords = kBlock / 16;

  u16 ones_before[kHighWords];   // in the high section that is being read
  u32 is_exception[kMaskWords];  // bit i for the block's i-th change
  u16 exceptions_before[kMaskWords];
  ScanShared<kThreadsOf<kBlock>> scan;
};

// The entry of a block of `elements`, checked against what of the payload it claims. False:
// corrupt.
ROSE_DEVICE bool is_valid(const Entry& entry, u32 elements, u64 offset, u64 payload_words) {
  if (entry.kind == kEmpty) return to_bits(entry) == 0;
  if (entry.changed == 0 || entry.changed > elements) return false;
  if (offset > payload_words || entry.words > payload_words - offset) return false;
  if (entry.kind == kRaw) return entry.exceptions == 0 && entry.words == raw_words(elements);
  return entry.kind == kGap && entry.exceptions <= entry.changed &&
         entry.words == gap_layout(elements, entry.changed, entry.exceptions).words &&
         entry.words < raw_words(elements);
}

// Whether the last word of a section of `bits` bits is 0 behind them.
ROSE_DEVICE bool is_tail_clear(const u32* section, u32 bits) {
  return bits % 32 == 0 || section[bits / 32] >> bits % 32 == 0;
}

ROSE_DEVICE bool is_tail_clear(const u32* payload, const EliasFano& section) {
  return is_tail_clear(payload + section.high_at, high_bits_of(section)) &&
         is_tail_clear(payload + section.low_at, section.count * section.low_bits);
}

ROSE_DEVICE bool are_tails_clear(const u32* payload, const GapLayout& layout) {
  const u32 exceptions = layout.ranks.count;
  return is_tail_clear(payload, layout.positions) &&
         is_tail_clear(payload + layout.signs_at, layout.positions.count) &&
         (exceptions == 0 || (is_tail_clear(payload, layout.ranks) &&
                              is_tail_clear(payload + layout.values_at, 16 * exceptions)));
}

// Sets before[i] to the ones in words 0 to i - 1, and returns all of them. All threads of the CTA
// call it; `before` is written behind the barriers of scan(), when nobody reads what it was.
template <u32 kBlock>
ROSE_DEVICE u32 count_ones(const u32* words, u32 count, u16* before, DecodeShared<kBlock>& shared) {
  const u32 share = (count + kThreadsOf<kBlock> - 1) / kThreadsOf<kBlock>;
  const u32 first = threadIdx.x * share;
  const u32 end = first + share < count ? first + share : count;
  u32 ones = 0;
  for (u32 i = first; i < end; ++i) ones += static_cast<u32>(__popc(words[i]));
  const Scanned scanned = scan(static_cast<u64>(ones), shared.scan);
  u32 sum = static_cast<u32>(scanned.before);
  for (u32 i = first; i < end; ++i) {
    before[i] = static_cast<u16>(sum);  // 65,536 only after the last one, where nobody looks
    sum += static_cast<u32>(__popc(words[i]));
  }
  __syncthreads();  // `before` is written, all can read it; the scan was read, one more may come
  return static_cast<u32>(scanned.total);
}

// The `width` <= 16 bits at bit `at`. For a width of 0 it looks at the section behind; there is one
// behind every section of low bits.
ROSE_DEVICE u32 field(const u32* words, u32 at, u32 width) {
  const u32 shift = at % 32;
  u32 bits = words[at / 32] >> shift;
  if (shift + width > 32) bits |= words[at / 32 + 1] << (32 - shift);
  return bits & ((1U << width) - 1);
}

// Calls visit(i, number, is_good) for the i-th number, which is_good if it is below the universe
// and above the one before. The high section has as many ones as numbers. One warp takes a word,
// one lane a bit.
template <u32 kBlock, typename Visit>
ROSE_DEVICE void for_each_number(const u32* payload, const EliasFano& section,
                                 const u16* ones_before, const Visit& visit) {
  constexpr u32 kWarps = kThreadsOf<kBlock> / kWarp;
  const u32 lane = threadIdx.x % kWarp;
  const u32* high = payload + section.high_at;
  const u32* low = payload + section.low_at;
  for (u32 word = threadIdx.x / kWarp; word < section.high_words; word += kWarps) {
    const u32 bits = high[word];
    if ((bits >> lane & 1) == 0) continue;
    const u32 i = ones_before[word] + static_cast<u32>(__popc(bits & ((1U << lane) - 1)));
    const u32 lows = field(low, i * section.low_bits, section.low_bits);
    const u32 number = (word * 32 + lane - i) << section.low_bits | lows;
    // Numbers of one bucket are neighbours in the high section; only there can order be wrong.
    const bool is_neighbour =
        lane > 0 ? (bits >> (lane - 1) & 1) != 0 : word > 0 && high[word - 1] >> 31 != 0;
    const bool is_ascending =
        !is_neighbour || lows > field(low, (i - 1) * section.low_bits, section.low_bits);
    visit(i, number, is_ascending && number < section.universe);
  }
}

// Whether the i-th exception has no sign and its value is no step: XOR 1 is one of any number.
ROSE_DEVICE bool is_exception(const u32* payload, const GapLayout& layout, u32 i, u32 rank) {
  return field(payload + layout.signs_at, rank, 1) == 0 &&
         field(payload + layout.values_at, 16 * i, 16) > 1;
}

// Whether this GAP block, whose entry is valid, is what a pack writes, but for what only the
// weights can tell. All threads of the CTA call it; then for_each_change() may be called.
template <u32 kBlock>
ROSE_DEVICE bool prepare_gap(const u32* payload, const GapLayout& layout,
                             DecodeShared<kBlock>& shared) {
  bool is_bad = threadIdx.x == 0 && !are_tails_clear(payload, layout);
  if (layout.ranks.count != 0) {
    const u32 mask_words = words_of(layout.positions.count);
    for (u32 i = threadIdx.x; i < mask_words; i += kThreadsOf<kBlock>) shared.is_exception[i] = 0;
    const u32 ones = count_ones(payload + layout.ranks.high_at, layout.ranks.high_words,
                                shared.ones_before, shared);
    if (ones != layout.ranks.count) return false;  // the same for all threads
    for_each_number<kBlock>(payload, layout.ranks, shared.ones_before,
                            [&](u32 i, u32 rank, bool is_good) {
                              if (!is_good || !is_exception(payload, layout, i, rank)) {
                                is_bad = true;
                              } else {
                                atomicOr(&shared.is_exception[rank / 32], 1U << rank % 32);
                              }
                            });
    // Separates setting the bits from counting them.
    if (__syncthreads_or(is_bad) != 0) return false;
    count_ones(shared.is_exception, mask_words, shared.exceptions_before, shared);
  }
  const u32 ones = count_ones(payload + layout.positions.high_at, layout.positions.high_words,
                              shared.ones_before, shared);
  if (ones != layout.positions.count) return false;
  for_each_number<kBlock>(payload, layout.positions, shared.ones_before,
                          [&](u32, u32, bool is_good) { is_bad = is_bad || !is_good; });
  // Separates checking, which reads, from whatever the caller writes next.
  return __syncthreads_or(is_bad) == 0;
}

// Calls visit(i, position, change) for the i-th change of a block that was prepared.
template <u32 kBlock, typename Visit>
ROSE_DEVICE void for_each_change(const u32* payload, const GapLayout& layout,
                                 const DecodeShared<kBlock>& shared, const Visit& visit) {
  for_each_number<kBlock>(
      payload, layout.positions, shared.ones_before, [&](u32 i, u32 position, bool) {
        const u32 mask = layout.ranks.count == 0 ? 0 : shared.is_exception[i / 32];
        if ((mask >> i % 32 & 1) == 0) {
          const bool is_down = field(payload + layout.signs_at, i, 1) != 0;
          visit(i, position, Change{false, is_down ? kStepDown : kStepUp});
          return;
        }
        const u32 below = mask & ((1U << i % 32) - 1);
        const u32 exception = shared.exceptions_before[i / 32] + static_cast<u32>(__popc(below));
        const u32 value = field(payload + layout.values_at, 16 * exception, 16);
        visit(i, position, Change{true, static_cast<u16>(value)});
      });
}

}  // namespace rose::kernels
