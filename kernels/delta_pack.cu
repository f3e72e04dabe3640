#include "delta_pack.h"

#include "array_of_cta.h"
#include "block_order.h"
#include "change_key.h"
#include "change_write.h"
#include "eight.h"
#include "flat_list.h"
#include "size_choice.h"

namespace rose::kernels {
namespace {

// The plan of a block, and the figures from which it is made.
struct PlanShared {
  LengthCounts lengths;
  Cheapest few;
  Cheapest every;
  BlockPlan plan;
  u64 offset;
};

template <u32 kBlock>
struct PackShared {
  static constexpr u32 kMaskWords = kBlock / 32;
  // A typical payload fills a part of this; a larger payload is written window by window.
  static constexpr u32 kWindowWords = kBlock / 16;

  // Bit i belongs to element i of the block. `is_far`: a change with a size other than 1.
  alignas(16) u32 is_sent[kMaskWords];
  u32 is_down[kMaskWords];
  u32 is_far[kMaskWords];
  // Before the first window, this is a mask: bit i is set if element i differs and is not sent.
  u32 window[kWindowWords];
  ScanShared scan;
  PlanShared planned;
  u32 number;                                       // of the block in its array
  u64 sums[kBlock / kElementsOfThread / kWarp][2];  // change of the digest, by warp

  ROSE_DEVICE const ChangeLayout& layout() const { return planned.plan.layout; }
};

// The elements of one delta block.
struct PackBlock {
  u64 first;
  u32 elements;
  u32 width;
};

ROSE_DEVICE PackBlock block_of(const DeltaPackParams& params, u32 number) {
  const u64 first = number * params.block_elements;
  const u64 rest = params.count - first;
  const u64 elements = rest < params.block_elements ? rest : params.block_elements;
  return {first, static_cast<u32>(elements), static_cast<u32>(params.width)};
}

template <typename T>
ROSE_DEVICE Eight<T> load_shadow(const DeltaPackParams& params, u64 at) {
  if (params.shadow.base == nullptr) return Eight<T>{};
  return load_eight<T>(params.shadow, at, params.count);
}

// Loads the ages of elements `at` to `at` + 7, one byte each.
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

template <typename T>
ROSE_DEVICE Masks compare(const Eight<T>& now, const Eight<T>& old, const Bar& bar,
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
  }
  return masks;
}

// Writes a warp's part of the digest's change. All lanes call this.
ROSE_DEVICE void put_sums(const DigestSum& of_thread, u64* sums) {
  const u64 first = sum_of_warp(of_thread.first);
  const u64 second = sum_of_warp(of_thread.second);
  if (threadIdx.x % kWarp == 0) {
    sums[0] = first;
    sums[1] = second;
  }
}

// Fills the masks, and sums up the change of the shadow's digest.
template <typename T, typename Shared>
ROSE_DEVICE void fill_masks(const DeltaPackParams& params, const PackBlock& block, Shared& shared) {
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
    const Eight<T> old = load_shadow<T>(params, at);
    Eight<u8> ages{};
    if (has_ages && at < params.count) ages = load_ages(params, at);
    const Masks masks = compare(now, old, bar, ages);
    is_sent[i] = static_cast<u8>(masks.is_sent);
    is_down[i] = static_cast<u8>(masks.is_down);
    is_far[i] = static_cast<u8>(masks.is_far);
    if (has_ages) is_left[i] = static_cast<u8>(masks.is_left);
    if (params.digest != nullptr && masks.is_sent != 0) {
      Eight<T> after = old;
#pragma unroll
      for (u32 j = 0; j < kEight; ++j) {
        if ((masks.is_sent >> j & 1) != 0) after.set(j, now.at(j));
      }
      replace_in_digest(sum, old, after, params.first_index + at, params.seed);
    }
  }
  put_sums(sum, shared.sums[threadIdx.x / kWarp]);
}

// The `Source` for change_write.h: the changes of a block that is being packed.
template <typename Shared>
struct PackSource {
  const DeltaPackParams& params;
  const PackBlock& block;
  const Shared& shared;

  ROSE_DEVICE u32 sent(u32 word) const { return shared.is_sent[word]; }
  ROSE_DEVICE u32 down(u32 word) const { return shared.is_down[word]; }
  ROSE_DEVICE u32 listed(u32 word) const {
    return shared.layout().counts.are_all_listed ? shared.is_sent[word] : shared.is_far[word];
  }
  ROSE_DEVICE u32 number(u32 word, u32 bit) const { return word * 32 + bit; }
  ROSE_DEVICE u32 size(u32 word, u32 bit) const {
    if ((shared.is_far[word] >> bit & 1) == 0) return 1;
    return size_of(difference(word * 32 + bit), block.width);
  }
  // Returns the difference of an element. Call it before the shadow is updated.
  ROSE_DEVICE u32 difference(u32 position) const {
    const u64 at = block.first + position;
    const u32 to = load_bits(params.bits.base, place_of(params.bits, at).offset, block.width);
    if (params.shadow.base == nullptr) return to;
    const u32 from = load_bits(params.shadow.base, place_of(params.shadow, at).offset, block.width);
    return (to - from) & low_mask(block.width);
  }
};

// Counts the lengths of the magnitudes. A barrier must follow.
template <typename Shared>
ROSE_DEVICE void count_sizes(const PackSource<Shared>& source, LengthCounts& lengths) {
#pragma unroll 1
  for (u32 i = 0; i < kWordsOfThread; ++i) {
    const u32 word = threadIdx.x * kWordsOfThread + i;
#pragma unroll 1
    for (u32 rest = source.shared.is_far[word]; rest != 0; rest &= rest - 1) {
      count_size(lengths, source.size(word, first_bit(rest)));
    }
  }
}

// A block's row in the two tables.
struct Row {
  u64* entry;
  u64* offset;
  u64 number;  // number of the block in the call
};

ROSE_DEVICE Row row_of(const DeltaPackParams& params, u32 number) {
  return {params.entries + number, params.offsets + number, params.first_block + number};
}

// Reserves no payload, for a block without changes. All threads of the CTA call this.
ROSE_DEVICE void reserve_nothing(const Row& row) {
  if (threadIdx.x < kWarp) reserve(row.offset, row.number, 0);
}

// Decides the encoding of the block and reserves its payload. `row_of_block` returns its row, and
// count(lengths) must count the lengths of the magnitudes. All threads of the CTA call this.
template <typename GetRow, typename Count>
ROSE_DEVICE void make_plan(const GetRow& row_of_block, const PackBlock& block, u32 changed, u32 far,
                           PlanShared& shared, const Count& count) {
  if (far == 0) {  // the same for all threads
    if (threadIdx.x == 0) shared.few = shared.every = Cheapest{0, 0, 0};
  } else {
    clear(shared.lengths);
    __syncthreads();  // separates clearing the counts from counting sizes
    count(shared.lengths);
    __syncthreads();  // separates counting sizes from reading the counts
    const u32 warp = threadIdx.x / kWarp;
    if (warp == 0) {
      const Cheapest answer = cheapest(shared.lengths.few, far, 0, block.width);
      if (threadIdx.x % kWarp == 0) shared.few = answer;
    } else if (warp == 1) {
      const Cheapest answer = cheapest(shared.lengths.every, changed, changed - far, block.width);
      if (threadIdx.x % kWarp == 0) shared.every = answer;
    }
    __syncthreads();  // separates the two results from the plan made of them
  }
  if (threadIdx.x < kWarp) {
    u32 words = 0;
    if (threadIdx.x == 0) {
      shared.plan = plan_of(block.elements, block.width, changed, far, shared.few, shared.every);
      words = shared.plan.entry.words;
    }
    const Row row = row_of_block();
    const u64 offset = reserve(row.offset, row.number, words);
    if (threadIdx.x == 0) shared.offset = offset;
  }
  __syncthreads();  // separates making the plan from reading it
}

// Returns the entry as planned, or kDeferred if the arena has no room at the block's offset.
ROSE_DEVICE Entry entry_of(u64 arena_words, const PlanShared& shared) {
  const Entry entry = shared.plan.entry;
  const u64 offset = shared.offset;
  const bool has_room = offset <= arena_words && entry.words <= arena_words - offset;
  return has_room ? entry : Entry{kDeferred, 0, 0, 0};
}

ROSE_DEVICE void put_entry(const Row& row, const Entry& entry) {
  if (threadIdx.x == 0) *row.entry = to_bits(entry);
}

// Writes the parts of a GAP or BITMAP block that are whole words: the bitmap and the shape.
template <typename Shared>
ROSE_DEVICE void put_block_words(const Shared& shared, const ChangeLayout& layout,
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

template <typename Shared>
ROSE_DEVICE void write_changes(const PackSource<Shared>& source, Shared& shared, u32* payload,
                               Before before) {
  constexpr u32 kWindow = Shared::kWindowWords;
  const ChangeLayout& layout = shared.layout();
  if (layout.counts.are_all_listed) before.listed = before.changes;
  if (layout.counts.large != 0) {  // the same for all threads
    const u64 large = count_large(source, layout);
    before.large = static_cast<u32>(scan(large, shared.scan).before);
  }
  const u32 words = layout.end / 32;
#pragma unroll 1
  for (u32 first = 0; first < words; first += kWindow) {
    // Each thread clears the words that it copied out of the previous window.
#pragma unroll 1
    for (u32 i = threadIdx.x; i < kWindow; i += blockDim.x) shared.window[i] = 0;
    __syncthreads();  // separates clearing the window from setting bits
    const BitWindow window{shared.window, first, kWindow};
    put_block_words(shared, layout, window);
    if (!layout.is_bitmap) put_positions(source, layout, window, before.changes);
    put_changes(source, layout, window, before);
    // Separates setting bits from copying the window, and reading the old bits of the shadow from
    // overwriting them.
    __syncthreads();
    const u32 rest = words - first < kWindow ? words - first : kWindow;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < rest; i += blockDim.x) payload[first + i] = shared.window[i];
  }
}

template <typename Shared>
ROSE_DEVICE void write_raw(const PackSource<Shared>& source, const Shared& shared, u32* payload) {
  const u32 width = source.block.width;
  const u32 in_word = 32 / width;
#pragma unroll 1
  for (u32 i = threadIdx.x; i < shared.planned.plan.entry.words; i += blockDim.x) {
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

template <typename Shared>
ROSE_DEVICE void move_shadow(const DeltaPackParams& params, const PackBlock& block,
                             const Shared& shared) {
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

// Increments the ages of elements that differ and are not sent. All other ages become 0.
template <typename Shared>
ROSE_DEVICE void move_ages(const DeltaPackParams& params, const PackBlock& block,
                           const Shared& shared) {
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

// The arguments of a launch, for pack().
struct Arguments {
  const DeltaPackParams& params;

  ROSE_DEVICE const DeltaPackParams& operator()() const { return params; }
};

// One CTA packs a delta block. It reads the block once to find the changes (each thread takes every
// blockDim-th group of eight elements), counts them, and reserves the block's payload. Then each
// thread writes the changes of its own kElementsOfThread elements, and finally all threads update
// the shadow.
//
// `arguments` returns the arguments, and `number` the number of the block in its array. Both are
// called again for the last steps, so that no register has to hold their results until then.
template <typename Get, typename Number, typename Shared>
ROSE_DEVICE void pack(const Get& arguments, const Number& number, Shared& shared) {
  const DeltaPackParams& params = arguments();
  const PackBlock block = block_of(params, number());
  const PackSource<Shared> source{params, block, shared};
  with_width(params.width, [&](auto zero) { fill_masks<decltype(zero)>(params, block, shared); });
  __syncthreads();  // separates writing the masks from reading those of other threads

  u64 counts = 0;  // lower half: changes; upper half: changes with a size other than 1
#pragma unroll
  for (u32 i = 0; i < kWordsOfThread; ++i) {
    const u32 word = threadIdx.x * kWordsOfThread + i;
    counts += count_bits(shared.is_sent[word]);
    counts += static_cast<u64>(count_bits(shared.is_far[word])) << 32;
  }
  const Scanned scanned = scan(counts, shared.scan);
  const u32 changed = static_cast<u32>(scanned.total);

  const auto row = [&] { return row_of(arguments(), number()); };
  Entry entry{kEmpty, 0, 0, 0};
  u64 offset = 0;
  if (changed == 0) {  // the same for all threads
    reserve_nothing(row());
  } else {
    make_plan(row, block, changed, static_cast<u32>(scanned.total >> 32), shared.planned,
              [&](LengthCounts& lengths) { count_sizes(source, lengths); });
    entry = entry_of(params.arena_words, shared.planned);
    offset = shared.planned.offset;
  }
  if (params.ages != nullptr && entry.kind != kDeferred) move_ages(params, block, shared);
  if (entry.kind == kRaw) {
    write_raw(source, shared, params.arena + offset);
  } else if (entry.kind == kGap || entry.kind == kBitmap) {
    const Before before{static_cast<u32>(scanned.before), static_cast<u32>(scanned.before >> 32),
                        0};
    write_changes(source, shared, params.arena + offset, before);
  }
  const DeltaPackParams& late = arguments();
  put_entry(row(), entry);
  if (changed == 0 || entry.kind == kDeferred) return;
  if (late.shadow.base != nullptr) move_shadow(late, block, shared);
  if (late.digest != nullptr && threadIdx.x % kWarp < 2) {
    const u32 which = threadIdx.x % kWarp;
    atomic_add(&late.digest[which], shared.sums[threadIdx.x / kWarp][which]);
  }
}

// One CTA packs the next delta block of an array.
template <typename Shared>
ROSE_DEVICE void pack_array(const DeltaPackParams& params, Shared& shared) {
  if (threadIdx.x == 0) {
    shared.number = static_cast<u32>(take_block(params.newest) - params.first_block);
  }
  __syncthreads();  // separates taking the block from reading its number
  pack(Arguments{params}, [&] { return shared.number; }, shared);
}

// ---- flat ---------------------------------------------------------------------------------------

template <u32 kBlock>
struct ListShared {
  static constexpr u32 kWarps = kBlock / kElementsOfThread / kWarp;
  // Number of changes that a warp's list can hold: 4 % of the warp's 4,096 elements in blocks of
  // 64 Ki elements, and 10 % in blocks of 16 Ki, which are for denser deltas. Longer lists would
  // cost occupancy, first on sm_80, whose multiprocessors have the least shared memory.
  static constexpr u32 kListed = kBlock == kBlockMax ? 184 : 432;
  static constexpr u32 kWindowWords = kWarps * sizeof(WordQueue) / sizeof(u32);

  union {
    alignas(16) WordQueue queues[kWarps];
    u32 window[kWindowWords];  // replaces the queues once all changes are listed
  };
  ChangeList<kListed> lists[kWarps];
  PlanShared planned;
  u64 sums[kWarps][2];  // change of the digest, by warp

  // All sections of a block fit into the window: a change takes at most 7 bits for its position, 1
  // for its sign, 2 for its rank and 15 for its magnitude. Each section is padded to a whole word.
  static_assert(kWindowWords >= kWarps * kListed * 25 / 32 + 8);
};

template <u32 kBlock>
struct FlatShared {
  union {
    ListShared<kBlock> list;
    PackShared<kBlock> masks;
  };
  ScanShared scan;
  u32 cta;  // number of the block in the launch
  u32 array;
};

// Returns arguments for pack() that describe a CTA's block as an array of its own.
template <u32 kBlock>
ROSE_DEVICE DeltaPackParams block_as_array(const DeltaPackFlatParams& params,
                                           const FlatShared<kBlock>& shared) {
  const FlatArray& array = params.at[shared.array];
  const u32 number = number_in(array, shared.cta);
  const u64 first = static_cast<u64>(number) * kBlock;
  const u64 left = array.count - first;
  const u64 count = left < kBlock ? left : kBlock;
  const auto row = [&](const u16* base) {
    u8* address = const_cast<u8*>(reinterpret_cast<const u8*>(base + first));
    return Box{address, {{1, 0, 0}, {1, 0, 0}, {count, 0, 0}}, {0, 0, 0, 1}};
  };
  return {.bits = row(array.bits),
          .shadow = row(array.shadow),
          .width = 16,
          .count = count,
          .block_elements = kBlock,
          .threshold = params.threshold,
          .ages = nullptr,
          .age_limit = 0,
          .arena = params.arena,
          .arena_words = params.arena_words,
          .newest = nullptr,
          .first_block = params.first_block + shared.cta,
          .entries = array.entries + number,
          .offsets = array.offsets + number,
          .digest = array.digest,
          .first_index = array.first_index + first,
          .seed = params.seed};
}

// Lists the changes in this warp's part of the CTA's block. A block of fewer than kBlock elements,
// which only an array's last block can be, is not read; its list counts as overfull.
template <u32 kBlock>
ROSE_DEVICE void list_part(const DeltaPackFlatParams& params, FlatShared<kBlock>& shared,
                           ListState& state) {
  // All lanes have the same number. The reduction shows this to the compiler, which then needs
  // fewer registers.
  const u32 cta = __reduce_max_sync(kAllLanes, shared.cta);
  const u32 which = array_of_cta(params, cta);
  if (threadIdx.x == 0) shared.array = which;
  const FlatArray& array = params.at[which];
  const u64 block = static_cast<u64>(number_in(array, cta)) * kBlock;
  if (array.count - block < kBlock) {  // the same for all threads
    state.listed = ListShared<kBlock>::kListed + 1;
    return;
  }
  const u32 warp = threadIdx.x / kWarp;
  const u32 first = warp * kWarp * kElementsOfThread;
  list_changes(reinterpret_cast<const Eight<u16>*>(array.bits + block + first),
               reinterpret_cast<const Eight<u16>*>(array.shadow + block + first), first / kInWord,
               DigestKeys::of((array.first_index + block) / kInWord, params.seed), params.threshold,
               shared.list.queues[warp], shared.list.lists[warp], state);
}

// Packs a block of a flat array (is_flat()) from lists of its changes, one per warp. Returns false,
// and writes nothing, if a list has no room or the block has fewer than kBlock elements.
template <u32 kBlock>
ROSE_DEVICE bool pack_listed(const DeltaPackFlatParams& params, FlatShared<kBlock>& shared) {
  using List = ListShared<kBlock>;
  const u32 lane = threadIdx.x % kWarp;
  const u32 warp = threadIdx.x / kWarp;
  ListState state;
  list_part(params, shared, state);
  // The sums wait in shared memory, because no register could hold them until the end.
  put_sums(state.sum, shared.list.sums[warp]);

  // Numbers of changes, of changes with a size other than 1, and of warps whose list is too short.
  constexpr u32 kFarAt = 20;
  constexpr u32 kLongAt = 40;
  u64 counts = static_cast<u64>(state.far) << kFarAt;
  if (lane == 0) counts += state.listed | static_cast<u64>(state.listed > List::kListed) << kLongAt;
  const Scanned scanned = scan(counts, shared.scan);
  const u32 changed = static_cast<u32>(scanned.total) & low_mask(kFarAt);
  const u32 far = static_cast<u32>(scanned.total >> kFarAt) & low_mask(kFarAt);
  if (scanned.total >> kLongAt != 0) return false;
  // The array is looked up again, because no register could hold it while list_part() ran.
  const FlatArray& array = params.at[shared.array];
  const u32 number = number_in(array, shared.cta);
  const PackBlock block{static_cast<u64>(number) * kBlock, kBlock, 16};
  const Row row{array.entries + number, array.offsets + number, params.first_block + shared.cta};
  auto& list = shared.list.lists[warp];
  if (changed == 0) {
    reserve_nothing(row);
    put_entry(row, Entry{kEmpty, 0, 0, 0});
    return true;
  }

  PlanShared& planned = shared.list.planned;
  const auto count = [&](LengthCounts& lengths) {
#pragma unroll 1
    for (u32 i = lane; i < state.listed; i += kWarp) {
      const u32 size = size_of(list.changes[i] & 0xFFFF, 16);
      if (size != 1) count_size(lengths, size);
    }
  };
  // With so few changes GAP needs the fewest words, so the plan is always a GAP block.
  make_plan([&] { return row; }, block, changed, far, planned, count);
  const Entry entry = entry_of(params.arena_words, planned);
  put_entry(row, entry);
  if (entry.kind == kDeferred) return true;

  const ChangeLayout& layout = planned.plan.layout;
  u32* window = shared.list.window;
#pragma unroll 1
  for (u32 i = threadIdx.x; i < entry.words; i += blockDim.x) window[i] = 0;
  Before before{static_cast<u32>(scanned.before_warp) & low_mask(kFarAt), 0, 0};
  before.listed = layout.counts.are_all_listed
                      ? before.changes
                      : static_cast<u32>(scanned.before_warp >> kFarAt) & low_mask(kFarAt);
  if (layout.counts.large != 0) {  // the same for all threads
    const u32 large = count_large(list.changes, state.listed, layout);
    before.large = static_cast<u32>(scan(large, shared.scan).before_warp);
  }
  __syncthreads();  // separates clearing the window from setting bits
  or_changes(list.changes, state.listed, layout, window, before);
  if (threadIdx.x == 0 && layout.counts.listed != 0) {
    window[layout.shape_at / 32] = layout.counts.magnitude_bits | layout.counts.large << 8;
  }
#pragma unroll 1
  for (u32 i = lane; i < state.listed; i += kWarp) {
    array.shadow[block.first + (list.changes[i] >> 16)] = list.values[i];
  }
  __syncthreads();  // separates setting bits from copying the window
  u32* payload = params.arena + planned.offset;
#pragma unroll 1
  for (u32 i = threadIdx.x; i < entry.words; i += blockDim.x) payload[i] = window[i];
  if (array.digest != nullptr && lane < 2) {
    atomic_add(&array.digest[lane], shared.list.sums[warp][lane]);
  }
  return true;
}

// One CTA packs one delta block. Blocks that are dense, or have fewer than kBlock elements, are
// packed as in delta_pack_kernel.
template <u32 kBlock>
ROSE_DEVICE void pack_flat(const DeltaPackFlatParams& params, FlatShared<kBlock>& shared) {
  if (threadIdx.x == 0) {
    shared.cta = static_cast<u32>(take_block(params.newest) - params.first_block);
  }
  __syncthreads();  // separates taking the block from reading its number
  if (pack_listed(params, shared)) return;
  pack([&] { return block_as_array(params, shared); }, [] { return 0U; }, shared.masks);
}

}  // namespace
}  // namespace rose::kernels

using rose::kernels::DeltaPackFlatParams;
using rose::kernels::DeltaPackParams;
using rose::kernels::FlatShared;
using rose::kernels::kBlockMax;
using rose::kernels::kCtas;
using rose::kernels::kThreadsMax;

// See pack_array() above.
extern "C" __global__ __launch_bounds__(kThreadsMax, kCtas) void delta_pack_kernel(
    const DeltaPackParams params) {
  __shared__ rose::kernels::PackShared<kBlockMax> shared;
  rose::kernels::pack_array(params, shared);
}

extern "C" __global__ __launch_bounds__(kThreadsMax / 4, 4 * kCtas) void delta_pack_16k_kernel(
    const DeltaPackParams params) {
  __shared__ rose::kernels::PackShared<kBlockMax / 4> shared;
  rose::kernels::pack_array(params, shared);
}

// See pack_flat() above.
extern "C" __global__ __launch_bounds__(kThreadsMax, kCtas) void delta_pack_flat_64k_kernel(
    const __grid_constant__ DeltaPackFlatParams params) {
  __shared__ FlatShared<kBlockMax> shared;
  rose::kernels::pack_flat(params, shared);
}

extern "C" __global__ __launch_bounds__(kThreadsMax / 4, 4 * kCtas) void delta_pack_flat_16k_kernel(
    const __grid_constant__ DeltaPackFlatParams params) {
  __shared__ FlatShared<kBlockMax / 4> shared;
  rose::kernels::pack_flat(params, shared);
}
