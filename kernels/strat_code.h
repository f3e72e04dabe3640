// STRAT blocks: changes coded class by class of the old exponent. docs/protocol.md, "STRAT".
#pragma once

#include "gap_code.h"

namespace rose::kernels {

constexpr u32 kClasses = 8;
constexpr u32 kClassBits = 3;  // planes of bits that say a class

// The class rule of a link, as its header has it; every field is eight bytes wide.
struct StratRule {
  u64 shift;
  u64 exponent_bits;
  u64 origin;
  u64 all_mask;
  u64 magnitude_bits;  // of class c in bits 8 c to 8 c + 7
};

ROSE_HD inline u32 class_of(u32 old, const StratRule& rule) {
  const u32 exponent = (old >> rule.shift) & low_mask(static_cast<u32>(rule.exponent_bits));
  const u32 origin = static_cast<u32>(rule.origin);
  const u32 above = exponent > origin ? exponent - origin : 0;
  return above < kClasses ? above : kClasses - 1;
}

ROSE_HD inline bool is_all_listed(const StratRule& rule, u32 c) {
  return (rule.all_mask >> c & 1) != 0;
}

ROSE_HD inline u32 magnitude_bits_of(const StratRule& rule, u32 c) {
  return static_cast<u32>(rule.magnitude_bits >> (8 * c) & 0xFF);
}

// The bits of Elias gamma of a number > 0.
ROSE_HD inline u32 gamma_bits(u32 number) { return 2 * floor_log2(number) + 1; }

// The elements of one delta block.
struct StratBlock {
  u64 first;
  u32 elements;
  u32 width;
};

template <typename Params>
ROSE_HD inline StratBlock strat_block(const Params& params, u64 block) {
  const u64 first = block * params.block_elements;
  const u64 rest = params.count - first;
  const u64 elements = rest < params.block_elements ? rest : params.block_elements;
  return {first, static_cast<u32>(elements), static_cast<u32>(params.width)};
}

// The counts of one class.
ROSE_HD inline ChangeCounts class_counts(const StratRule& rule, u32 c, u32 universe, u32 changed,
                                         u32 listed, u32 large) {
  return {universe, changed, listed, large, magnitude_bits_of(rule, c), is_all_listed(rule, c)};
}

// The sections of a class that changes, from bit `at` of the stream on. Where more than a
// quarter of it changes, a bitmap is shorter than Elias-Fano.
ROSE_HD inline ChangeLayout class_layout(u32 at, const ChangeCounts& counts, u32 width) {
  const bool is_bitmap = counts.universe < 4 * counts.changed;
  return change_layout(at, counts, width, is_bitmap, kAtBits);
}

}  // namespace rose::kernels
