#include "delta_pack.h"

#include "change_key.h"
#include "change_write.h"
#include "eight.h"
#include "size_choice.h"

namespace rose::kernels {
namespace {

struct PackShared {
  // A typical payload needs a part of this; a larger one is written window by window.
  static constexpr u32 kWindowWords = kBlockMax / 16;

  // Bit i belongs to element i of the block. `is_far`: a change with a size other than 1.
  alignas(16) u32 is_sent[kMaskWordsMax];
  u32 is_down[kMaskWordsMax];
  u32 is_far[kMaskWordsMax];
  // Before the first window: bit i is set if element i differs and is not sent.
  u32 window[kWindowWords];
  LengthCounts lengths;
  ScanShared scan;
  Cheapest few;
  Cheapest every;
  BlockPlan plan;
  u64 offset;
};
static_assert(PackShared::kWindowWords >= kMaskWordsMax);

// The elements of one delta block.
struct PackBlock {
  u64 first;
  u32 elements;
  u32 width;
};

ROSE_DEVICE PackBlock block_of_cta(const DeltaPackParams& params) {
  const u64 first = static_cast<u64>(blockIdx.x) * params.block_elements;
  const u64 rest = params.count - first;
  const u64 elements = rest < params.block_elements ? rest : params.block_elements;
  return {first, static_cast<u32>(elements), static_cast<u32>(params.width)};
}

template <typename T>
ROSE_DEVICE Eight<T> load_shadow(const DeltaPackParams& params, u64 at) {
  if (params.shadow.base == nullptr) return Eight<T>{};
  return load_eight<T>(params.shadow, at, params.count);
}

// The ages of elements `at` to `at` + 7, one byte each.
ROSE_DEVICE Eight<u8> load_ages(const DeltaPackParams& params, u64 at) {
  Eight<u8> ages{};
  if (params.count - at >= kEight && is_aligned<u8>(params.ages + at)) {
    return *reinterpret_cast<const Eight<u8>*>(params.ages + at);
  }
#pragma unroll 1
  for (u32 i = 0; i < kEight; ++i) {
    ages.shift_in(at + i < params.count ? params.ages[at + i] : u8{0});
  }
  return ages;
}

struct Masks {
  u32 is_sent{0};
  u32 is_down{0};
  u32 is_far{0};
  u32 is_left{0};
};

// The conditions for sending a bf16 change.
struct Bar {
  u32 threshold;
  u32 age_limit;
};

// Compares eight elements, and sets `old` to the new values of the shadow.
template <typename T>
ROSE_DEVICE Masks compare(const Eight<T>& now, Eight<T>& old, const Bar& bar,
                          const Eight<u8>& ages) {
  Masks masks;
#pragma unroll
  for (u32 i = 0; i < kEight; ++i) {
    const T to = now.at(i);
    const T from = old.at(i);
    const T difference = static_cast<T>(to - from);
    if (difference == 0) continue;
    if constexpr (sizeof(T) == sizeof(u16)) {
      if (bar.threshold != 0 && change_key(to, from) < bar.threshold &&
          ages.at(i) < bar.age_limit) {
        masks.is_left |= 1U << i;
        continue;
      }
    }
    masks.is_sent |= 1U << i;
    masks.is_down |= (static_cast<u32>(difference) >> (8 * sizeof(T) - 1)) << i;
    if (difference != T{1} && difference != static_cast<T>(~T{0})) masks.is_far |= 1U << i;
    old.set(i, to);
  }
  return masks;
}

// Fills the masks. Returns this thread's part of the updated shadow's digest.
template <typename T>
ROSE_DEVICE DigestSum fill_masks(const DeltaPackParams& params, const PackBlock& block,
                                 PackShared& shared) {
  [[maybe_unused]] constexpr u32 kUnroll = sizeof(T) == 2 ? 2 : 1;
  const bool has_ages = sizeof(T) == sizeof(u16) && params.ages != nullptr;
  const Bar bar{params.threshold == nullptr ? 0 : *params.threshold,
                has_ages ? static_cast<u32>(params.age_limit) : kAgeMax + 1};
  u8* is_sent = reinterpret_cast<u8*>(shared.is_sent);
  u8* is_down = reinterpret_cast<u8*>(shared.is_down);
  u8* is_far = reinterpret_cast<u8*>(shared.is_far);
  u8* is_left = reinterpret_cast<u8*>(shared.window);
  DigestSum sum;
#pragma unroll kUnroll
  for (u32 i = threadIdx.x; i < params.block_elements / kEight; i += blockDim.x) {
    const u64 at = block.first + i * kEight;
    const Eight<T> now = load_eight<T>(params.bits, at, params.count);
    Eight<T> after = load_shadow<T>(params, at);
    Eight<u8> ages{};
    if (has_ages && at < params.count) ages = load_ages(params, at);
    const Masks masks = compare(now, after, bar, ages);
    is_sent[i] = static_cast<u8>(masks.is_sent);
    is_down[i] = static_cast<u8>(masks.is_down);
    is_far[i] = static_cast<u8>(masks.is_far);
    if (has_ages) is_left[i] = static_cast<u8>(masks.is_left);
    if (params.digest != nullptr) {
      add_to_digest(sum, after, at, params.count, params.first_index, params.seed);
    }
  }
  return sum;
}

template <typename T>
ROSE_DEVICE DigestSum digest_of_shadow(const DeltaPackParams& params, const PackBlock& block) {
  DigestSum sum;
#pragma unroll 1
  for (u32 i = threadIdx.x; i < params.block_elements / kEight; i += blockDim.x) {
    const u64 at = block.first + i * kEight;
    const Eight<T> old = load_shadow<T>(params, at);
    add_to_digest(sum, old, at, params.count, params.first_index, params.seed);
  }
  return sum;
}

// The changes of a packed block, for change_write.h.
struct PackSource {
  const DeltaPackParams& params;
  const PackBlock& block;
  const PackShared& shared;

  ROSE_DEVICE u32 sent(u32 word) const { return shared.is_sent[word]; }
  ROSE_DEVICE u32 down(u32 word) const { return shared.is_down[word]; }
  ROSE_DEVICE u32 listed(u32 word) const {
    return shared.plan.layout.counts.are_all_listed ? shared.is_sent[word] : shared.is_far[word];
  }
  ROSE_DEVICE u32 number(u32 word, u32 bit) const { return word * 32 + bit; }
  ROSE_DEVICE u32 size(u32 word, u32 bit) const {
    if ((shared.is_far[word] >> bit & 1) == 0) return 1;
    return size_of(difference(word * 32 + bit), block.width);
  }
  // The difference of an element before its shadow is updated.
  ROSE_DEVICE u32 difference(u32 position) const {
    const u64 at = block.first + position;
    const u32 to = load_bits(params.bits.base, place_of(params.bits, at).offset, block.width);
    if (params.shadow.base == nullptr) return to;
    const u32 from = load_bits(params.shadow.base, place_of(params.shadow, at).offset, block.width);
    return (to - from) & low_mask(block.width);
  }
};

// Counts the lengths of the magnitudes. A barrier must follow.
ROSE_DEVICE void count_sizes(const PackSource& source, PackShared& shared) {
#pragma unroll 1
  for (u32 i = 0; i < kWordsOfThread; ++i) {
    const u32 word = threadIdx.x * kWordsOfThread + i;
#pragma unroll 1
    for (u32 rest = shared.is_far[word]; rest != 0; rest &= rest - 1) {
      count_size(shared.lengths, source.size(word, first_bit(rest)));
    }
  }
}

// Decides the encoding of the block and reserves its payload. All threads of the CTA call it.
ROSE_DEVICE void make_plan(const DeltaPackParams& params, const PackSource& source, u32 changed,
                           u32 far, PackShared& shared) {
  if (far == 0) {  // the same for all threads
    if (threadIdx.x == 0) shared.few = shared.every = Cheapest{0, 0, 0};
  } else {
    clear(shared.lengths);
    __syncthreads();  // separates clearing the counts from counting sizes
    count_sizes(source, shared);
    __syncthreads();  // separates counting sizes from reading the counts
    const u32 warp = threadIdx.x / kWarp;
    const u32 width = source.block.width;
    if (warp == 0) {
      const Cheapest answer = cheapest(shared.lengths.few, far, 0, width);
      if (threadIdx.x % kWarp == 0) shared.few = answer;
    } else if (warp == 1) {
      const Cheapest answer = cheapest(shared.lengths.every, changed, changed - far, width);
      if (threadIdx.x % kWarp == 0) shared.every = answer;
    }
    __syncthreads();  // separates the two results from the plan made of them
  }
  if (threadIdx.x == 0) {
    shared.plan =
        plan_of(source.block.elements, source.block.width, changed, far, shared.few, shared.every);
    shared.offset = atomic_add(params.cursor, shared.plan.entry.words);
  }
  __syncthreads();  // separates making the plan from reading it
}

// Writes the words of a GAP or BITMAP block that belong to no element.
ROSE_DEVICE void put_block_words(const PackShared& shared, const ChangeLayout& layout,
                                 const BitWindow& window) {
  if (layout.is_bitmap) {
#pragma unroll 1
    for (u32 i = threadIdx.x; i < words_of(layout.counts.universe); i += blockDim.x) {
      if (window.has(i)) window.words[i - window.first] = shared.is_sent[i];
    }
  }
  const u32 shape_at = layout.shape_at / 32;
  if (threadIdx.x == 0 && layout.counts.listed != 0 && window.has(shape_at)) {
    window.words[shape_at - window.first] = layout.counts.magnitude_bits | layout.counts.large << 8;
  }
}

ROSE_DEVICE void write_changes(const PackSource& source, PackShared& shared, u32* payload,
                               Before before) {
  constexpr u32 kWindow = PackShared::kWindowWords;
  const ChangeLayout& layout = shared.plan.layout;
  if (layout.counts.are_all_listed) before.listed = before.changes;
  if (layout.counts.large != 0) {  // the same for all threads
    const u64 large = count_large(source, layout);
    before.large = static_cast<u32>(scan(large, shared.scan).before);
  }
  const u32 words = layout.end / 32;
#pragma unroll 1
  for (u32 first = 0; first < words; first += kWindow) {
    // Each thread clears the words that it copied.
#pragma unroll 1
    for (u32 i = threadIdx.x; i < kWindow; i += blockDim.x) shared.window[i] = 0;
    __syncthreads();  // separates clearing the window from setting bits
    const BitWindow window{shared.window, first, kWindow};
    put_block_words(shared, layout, window);
    if (!layout.is_bitmap) put_positions(source, layout, window, before.changes);
    put_changes(source, layout, window, before);
    // Separates setting bits from copying the window, and reading the old bits from updating the
    // shadow.
    __syncthreads();
    const u32 rest = words - first < kWindow ? words - first : kWindow;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < rest; i += blockDim.x) payload[first + i] = shared.window[i];
  }
}

ROSE_DEVICE void write_raw(const PackSource& source, const PackShared& shared, u32* payload) {
  const u32 width = source.block.width;
  const u32 in_word = 32 / width;
#pragma unroll 1
  for (u32 i = threadIdx.x; i < shared.plan.entry.words; i += blockDim.x) {
    const u32 first = i * in_word;
    u32 word = 0;
#pragma unroll 1
    for (u32 j = 0; j < in_word; ++j) {
      const u32 position = first + j;
      if ((shared.is_sent[position / 32] >> position % 32 & 1) != 0) {
        word |= source.difference(position) << (j * width);
      }
    }
    payload[i] = word;
  }
  __syncthreads();  // separates reading the old bits from overwriting the shadow
}

// Copies eight elements at once, if the alignment of both arrays allows it.
template <typename T>
ROSE_DEVICE bool copy_eight(const DeltaPackParams& params, const Place& source,
                            const Place& target) {
  const T* from = reinterpret_cast<const T*>(params.bits.base) + source.offset;
  T* to = reinterpret_cast<T*>(params.shadow.base) + target.offset;
  if (!is_aligned<T>(from) || !is_aligned<T>(to)) return false;
  *reinterpret_cast<Eight<T>*>(to) = *reinterpret_cast<const Eight<T>*>(from);
  return true;
}

ROSE_DEVICE void move_shadow(const DeltaPackParams& params, const PackBlock& block,
                             const PackShared& shared) {
  const u8* is_sent = reinterpret_cast<const u8*>(shared.is_sent);
#pragma unroll 1
  for (u32 i = threadIdx.x; i < params.block_elements / kEight; i += blockDim.x) {
    const u32 mask = is_sent[i];
    const u64 at = block.first + i * kEight;
    bool is_done = false;
    if (mask == 0xFF) {
      const Place source = place_of(params.bits, at);
      const Place target = place_of(params.shadow, at);
      if (source.rest >= kEight && target.rest >= kEight && params.bits.strides[3] == 1 &&
          params.shadow.strides[3] == 1) {
        with_width(params.width, [&](auto zero) {
          is_done = copy_eight<decltype(zero)>(params, source, target);
        });
      }
    }
    if (is_done) continue;
#pragma unroll 1
    for (u32 rest = mask; rest != 0; rest &= rest - 1) {
      const u64 one = at + first_bit(rest);
      const u64 from = place_of(params.bits, one).offset;
      const u32 bits = load_bits(params.bits.base, from, block.width);
      store_bits(params.shadow.base, place_of(params.shadow, one).offset, block.width, bits);
    }
  }
}

// Increments the age of elements that differ and are unsent, and resets the others.
ROSE_DEVICE void move_ages(const DeltaPackParams& params, const PackBlock& block,
                           const PackShared& shared) {
  const u8* is_left = reinterpret_cast<const u8*>(shared.window);
#pragma unroll 1
  for (u32 i = threadIdx.x; i < params.block_elements / kEight; i += blockDim.x) {
    const u64 at = block.first + i * kEight;
    if (at >= params.count) break;
    const Eight<u8> old = load_ages(params, at);
    Eight<u8> ages{};
#pragma unroll
    for (u32 j = 0; j < kEight; ++j) {
      const u32 age = old.at(j);
      if ((is_left[i] >> j & 1) != 0) ages.set(j, static_cast<u8>(age + (age < kAgeMax ? 1 : 0)));
    }
    if (params.count - at >= kEight && is_aligned<u8>(params.ages + at)) {
      *reinterpret_cast<Eight<u8>*>(params.ages + at) = ages;
      continue;
    }
#pragma unroll
    for (u32 j = 0; j < kEight; ++j) {
      if (at + j < params.count) params.ages[at + j] = ages.at(j);
    }
  }
  __syncthreads();  // separates reading the unsent mask from using the window
}

// One CTA packs one delta block. It reads the block once to find the changes (each thread takes
// every blockDim-th group of eight elements), counts, and reserves its payload. Then each thread
// writes the changes of its own kElementsOfThread elements, and finally all update the shadow.
ROSE_DEVICE void pack(const DeltaPackParams& params, PackShared& shared) {
  const PackBlock block = block_of_cta(params);
  const PackSource source{params, block, shared};
  DigestSum sum;
  with_width(params.width,
             [&](auto zero) { sum = fill_masks<decltype(zero)>(params, block, shared); });
  __syncthreads();  // separates writing the masks from reading those of other threads

  u64 counts = 0;  // changes, and from bit 32 on those with a size other than 1
#pragma unroll
  for (u32 i = 0; i < kWordsOfThread; ++i) {
    const u32 word = threadIdx.x * kWordsOfThread + i;
    counts += count_bits(shared.is_sent[word]);
    counts += static_cast<u64>(count_bits(shared.is_far[word])) << 32;
  }
  const Scanned scanned = scan(counts, shared.scan);
  const u32 changed = static_cast<u32>(scanned.total);

  Entry entry{kEmpty, 0, 0, 0};
  u64 offset = 0;
  if (changed != 0) {  // the same for all threads
    make_plan(params, source, changed, static_cast<u32>(scanned.total >> 32), shared);
    entry = shared.plan.entry;
    offset = shared.offset;
    if (offset > params.arena_words || entry.words > params.arena_words - offset) {
      entry = Entry{kDeferred, 0, 0, 0};
      offset = 0;
    }
  }
  if (params.ages != nullptr && entry.kind != kDeferred) move_ages(params, block, shared);
  if (entry.kind == kRaw) {
    write_raw(source, shared, params.arena + offset);
  } else if (entry.kind == kGap || entry.kind == kBitmap) {
    const Before before{static_cast<u32>(scanned.before), static_cast<u32>(scanned.before >> 32),
                        0};
    write_changes(source, shared, params.arena + offset, before);
  }
  const bool is_moving = changed != 0 && entry.kind != kDeferred && params.shadow.base != nullptr;
  const bool is_stale = entry.kind == kDeferred && params.digest != nullptr;
  if (is_moving) move_shadow(params, block, shared);
  if (is_stale) {
    with_width(params.width,
               [&](auto zero) { sum = digest_of_shadow<decltype(zero)>(params, block); });
  }
  if (threadIdx.x == 0) {
    params.entries[blockIdx.x] = to_bits(entry);
    params.offsets[blockIdx.x] = offset;
  }
  if (params.digest != nullptr) add_atomically(sum, params.digest);
}

}  // namespace
}  // namespace rose::kernels

// See pack() above.
extern "C" __global__ __launch_bounds__(
    rose::kernels::kThreadsMax,
    rose::kernels::kCtas) void delta_pack_kernel(const rose::kernels::DeltaPackParams params) {
  __shared__ rose::kernels::PackShared shared;
  rose::kernels::pack(params, shared);
}
