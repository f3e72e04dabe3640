#include "delta_pack.h"

#include "bit_window.h"
#include "block_scan.h"
#include "change_key.h"
#include "eight.h"
#include "gap_code.h"

namespace rose::kernels {
namespace {

template <u32 kBlock>
struct PackShared {
  static constexpr u32 kMaskWords = kBlock / 32;
  // A typical payload is a fraction of it; one that is larger is written window by window.
  static constexpr u32 kWindowWords = kBlock / 16;

  // Bit i for element i of the block.
  alignas(16) u32 is_sent[kMaskWords];
  u32 is_step_down[kMaskWords];
  u32 is_exception[kMaskWords];
  u32 window[kWindowWords];
  ScanShared<kThreadsOf<kBlock>> scan;
  u64 offset;
};

// The elements of one delta block.
struct PackBlock {
  const u16* bits;
  u16* shadow;
  u32 elements;
  bool is_aligned;
  u64 first_index;
};

ROSE_DEVICE PackBlock block_of_cta(const DeltaPackParams& params, u32 block_elements) {
  const u64 first = static_cast<u64>(blockIdx.x) * block_elements;
  const u64 rest = params.count - first;
  const u16* bits = params.bits + first;
  u16* shadow = params.shadow + first;
  return {bits, shadow, static_cast<u32>(rest < block_elements ? rest : block_elements),
          is_aligned_16(bits) && is_aligned_16(shadow), params.first_index + first};
}

struct Masks {
  u32 is_sent{0};
  u32 is_step_down{0};
  u32 is_exception{0};
};

// Compares eight elements, and makes of `old` what the shadow becomes.
ROSE_DEVICE Masks compare(const Eight& now, Eight& old, u32 threshold) {
  Masks masks;
#pragma unroll
  for (u32 i = 0; i < kEight; ++i) {
    const u16 to = now.at(i);
    const u16 from = old.at(i);
    const u16 step = static_cast<u16>(to - from);
    if (step == 0 || (threshold != 0 && change_key(to, from) < threshold)) continue;
    masks.is_sent |= 1U << i;
    if (step == kStepDown) {
      masks.is_step_down |= 1U << i;
    } else if (step != kStepUp) {
      masks.is_exception |= 1U << i;
    }
    old.set(i, to);
  }
  return masks;
}

// Fills the masks; returns this thread's part of the digest of the shadow after packing.
template <u32 kBlock>
ROSE_DEVICE DigestSum fill_masks(const DeltaPackParams& params, const PackBlock& block,
                                 PackShared<kBlock>& shared) {
  const u32 threshold = params.threshold == nullptr ? 0 : *params.threshold;
  u8* is_sent = reinterpret_cast<u8*>(shared.is_sent);
  u8* is_step_down = reinterpret_cast<u8*>(shared.is_step_down);
  u8* is_exception = reinterpret_cast<u8*>(shared.is_exception);
  DigestSum sum;
#pragma unroll 2
  for (u32 i = threadIdx.x; i < kBlock / kEight; i += kThreadsOf<kBlock>) {
    const u32 at = i * kEight;
    const Eight now = load_eight(block.bits, at, block.elements, block.is_aligned);
    Eight after = load_eight(block.shadow, at, block.elements, block.is_aligned);
    const Masks masks = compare(now, after, threshold);
    is_sent[i] = static_cast<u8>(masks.is_sent);
    is_step_down[i] = static_cast<u8>(masks.is_step_down);
    is_exception[i] = static_cast<u8>(masks.is_exception);
    if (params.digest != nullptr) {
      add_to_digest(sum, after, at, block.elements, block.first_index, params.seed);
    }
  }
  return sum;
}

template <u32 kBlock>
ROSE_DEVICE DigestSum digest_of_shadow(const DeltaPackParams& params, const PackBlock& block) {
  DigestSum sum;
  for (u32 i = threadIdx.x; i < kBlock / kEight; i += kThreadsOf<kBlock>) {
    const u32 at = i * kEight;
    const Eight old = load_eight(block.shadow, at, block.elements, block.is_aligned);
    add_to_digest(sum, old, at, block.elements, block.first_index, params.seed);
  }
  return sum;
}

// Sets the bits of this thread's changes that lie in the window. `changes` come before them in the
// block, and `exceptions` exceptions.
template <u32 kBlock>
ROSE_DEVICE void put_changes(const PackBlock& block, const PackShared<kBlock>& shared,
                             const GapLayout& layout, const BitWindow& window, u32 changes,
                             u32 exceptions) {
  BitWriter high{layout.positions.high_at};
  BitWriter low{layout.positions.low_at};
  BitWriter signs{layout.signs_at};
  BitWriter ranks_high{layout.ranks.high_at};
  BitWriter ranks_low{layout.ranks.low_at};
  BitWriter values{layout.values_at};
  const u32 low_bits = layout.positions.low_bits;
  const u32 ranks_low_bits = layout.ranks.low_bits;
#pragma unroll 1
  for (u32 i = 0; i < kElementsOfThread / 32; ++i) {
    const u32 word = threadIdx.x * (kElementsOfThread / 32) + i;
    const u32 is_step_down = shared.is_step_down[word];
    const u32 is_exception = shared.is_exception[word];
#pragma unroll 1
    for (u32 rest = shared.is_sent[word]; rest != 0; rest &= rest - 1) {
      const u32 bit = static_cast<u32>(__ffs(static_cast<int>(rest))) - 1;
      const u32 position = word * 32 + bit;
      high.put(window, (position >> low_bits) + changes, 1);
      low.put(window, changes * low_bits, position & ((1U << low_bits) - 1));
      signs.put(window, changes, is_step_down >> bit & 1);
      if ((is_exception >> bit & 1) != 0) {
        ranks_high.put(window, (changes >> ranks_low_bits) + exceptions, 1);
        ranks_low.put(window, exceptions * ranks_low_bits, changes & ((1U << ranks_low_bits) - 1));
        if (window.has(layout.values_at + exceptions / 2)) {
          const u32 value = static_cast<u32>(block.bits[position] ^ block.shadow[position]);
          values.put(window, exceptions * 16, value);
        }
        ++exceptions;
      }
      ++changes;
    }
  }
  for (BitWriter* writer : {&high, &low, &signs, &ranks_high, &ranks_low, &values}) {
    writer->flush(window);
  }
}

template <u32 kBlock>
ROSE_DEVICE void write_gap(const PackBlock& block, PackShared<kBlock>& shared,
                           const GapLayout& layout, u32* payload, u32 changes, u32 exceptions) {
  constexpr u32 kWindow = PackShared<kBlock>::kWindowWords;
  for (u32 first = 0; first < layout.words; first += kWindow) {
    // A thread clears the words that it copied itself.
    for (u32 i = threadIdx.x; i < kWindow; i += kThreadsOf<kBlock>) shared.window[i] = 0;
    __syncthreads();  // the window is zero, bits can be set
    put_changes(block, shared, layout, {shared.window, first, kWindow}, changes, exceptions);
    // Every bit is set, the window can be copied; the old bits were read, the shadow can move.
    __syncthreads();
    const u32 rest = layout.words - first;
    const u32 words = rest < kWindow ? rest : kWindow;
    for (u32 i = threadIdx.x; i < words; i += kThreadsOf<kBlock>) {
      payload[first + i] = shared.window[i];
    }
  }
}

template <u32 kBlock>
ROSE_DEVICE void write_raw(const PackBlock& block, const PackShared<kBlock>& shared, u32* payload) {
  const u32 words = raw_words(block.elements);
  for (u32 i = threadIdx.x; i < words; i += kThreadsOf<kBlock>) {
    const u32 is_sent = shared.is_sent[i / 16] >> (2 * i % 32);
    u32 word = 0;
    if ((is_sent & 1) != 0) word = static_cast<u32>(block.bits[2 * i] ^ block.shadow[2 * i]);
    if ((is_sent & 2) != 0) {
      word |= static_cast<u32>(block.bits[2 * i + 1] ^ block.shadow[2 * i + 1]) << 16;
    }
    payload[i] = word;
  }
  __syncthreads();  // the old bits were read, the shadow can be overwritten
}

template <u32 kBlock>
ROSE_DEVICE void move_shadow(const PackBlock& block, const PackShared<kBlock>& shared) {
  const u8* is_sent = reinterpret_cast<const u8*>(shared.is_sent);
  for (u32 i = threadIdx.x; i < kBlock / kEight; i += kThreadsOf<kBlock>) {
    const u32 mask = is_sent[i];
    const u32 at = i * kEight;
    if (mask == 0xFF && block.is_aligned) {
      *reinterpret_cast<Eight*>(block.shadow + at) =
          *reinterpret_cast<const Eight*>(block.bits + at);
      continue;
    }
    for (u32 rest = mask; rest != 0; rest &= rest - 1) {
      const u32 one = at + static_cast<u32>(__ffs(static_cast<int>(rest))) - 1;
      block.shadow[one] = block.bits[one];
    }
  }
}

// One CTA packs one delta block. It reads the block once to find what changes (a thread takes every
// kThreads-th eight elements), counts, and reserves its place; then each thread writes the changes
// of its own kElementsOfThread elements, and last all move the shadow.
template <u32 kBlock>
ROSE_DEVICE void pack(const DeltaPackParams& params, PackShared<kBlock>& shared) {
  static_assert(kThreadsOf<kBlock> * kElementsOfThread == kBlock);
  const PackBlock block = block_of_cta(params, kBlock);
  const u32 elements = block.elements;
  DigestSum sum = fill_masks(params, block, shared);
  __syncthreads();  // the masks are whole, threads can read others' parts

  u64 counts = 0;  // changes, and from bit 32 on exceptions
#pragma unroll
  for (u32 i = 0; i < kElementsOfThread / 32; ++i) {
    const u32 word = threadIdx.x * (kElementsOfThread / 32) + i;
    counts += static_cast<u64>(__popc(shared.is_sent[word]));
    counts += static_cast<u64>(__popc(shared.is_exception[word])) << 32;
  }
  const Scanned scanned = scan(counts, shared.scan);
  const u32 changed = static_cast<u32>(scanned.total);
  const u32 exceptions = static_cast<u32>(scanned.total >> 32);

  Entry entry{kEmpty, 0, 0, 0};
  u64 offset = 0;
  if (changed != 0) {  // the same for all threads
    const GapLayout layout = gap_layout(elements, changed, exceptions);
    const bool is_gap = layout.words < raw_words(elements);
    entry = is_gap ? Entry{kGap, changed, exceptions, layout.words}
                   : Entry{kRaw, changed, 0, raw_words(elements)};
    if (threadIdx.x == 0) shared.offset = atomic_add(params.cursor, entry.words);
    __syncthreads();  // the place is reserved, all can read it
    offset = shared.offset;
    if (offset > params.arena_words || entry.words > params.arena_words - offset) {
      entry = Entry{kDeferred, 0, 0, 0};
      offset = 0;
      if (params.digest != nullptr) sum = digest_of_shadow<kBlock>(params, block);
    } else {
      u32* payload = params.arena + offset;
      if (is_gap) {
        write_gap(block, shared, layout, payload, static_cast<u32>(scanned.before),
                  static_cast<u32>(scanned.before >> 32));
      } else {
        write_raw(block, shared, payload);
      }
      move_shadow(block, shared);
    }
  }
  if (threadIdx.x == 0) {
    params.entries[blockIdx.x] = to_bits(entry);
    params.offsets[blockIdx.x] = offset;
  }
  if (params.digest != nullptr) add_atomically(sum, params.digest);
}

}  // namespace
}  // namespace rose::kernels

using rose::kernels::DeltaPackParams;
using rose::kernels::kCtasOf;
using rose::kernels::kThreadsOf;
using rose::kernels::PackShared;

// pack() above, for delta blocks of 16,384 elements.
extern "C" __global__ __launch_bounds__(
    kThreadsOf<16384>, kCtasOf<16384>) void delta_pack_16ki_kernel(const DeltaPackParams params) {
  __shared__ PackShared<16384> shared;
  rose::kernels::pack<16384>(params, shared);
}

// pack() above, for delta blocks of 65,536 elements.
extern "C" __global__ __launch_bounds__(
    kThreadsOf<65536>, kCtasOf<65536>) void delta_pack_64ki_kernel(const DeltaPackParams params) {
  __shared__ PackShared<65536> shared;
  rose::kernels::pack<65536>(params, shared);
}
