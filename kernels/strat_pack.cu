#include "strat_pack.h"

#include "block_scan.h"
#include "change_write.h"
#include "class_planes.h"

namespace rose::kernels {
namespace {

struct StratPackShared {
  ClassPlanes planes;
  u32 is_changed[kMaskWordsMax];
  ScanShared scan;
  ChangeLayout layouts[kClasses];
  u32 words;  // of the block as STRAT
  u64 offset;
};

ROSE_DEVICE u32 difference_at(const StratPackParams& params, const StratBlock& block,
                              u32 position) {
  return load_bits(params.differences, block.first + position, block.width);
}

// The changes of one class, for change_write.h.
struct ClassSource {
  const StratPackParams& params;
  const StratBlock& block;
  const StratPackShared& shared;
  u32 c;
  bool are_all_listed;
  u32 members_before;  // of this thread

  ROSE_DEVICE u32 members(u32 word) const {
    return shared.planes.members(word, inside_of(word, block.elements), c);
  }
  ROSE_DEVICE u32 sent(u32 word) const { return shared.is_changed[word] & members(word); }
  // Sets the bit of each change that `is_so` of its difference.
  template <typename IsSo>
  ROSE_DEVICE u32 those(u32 word, const IsSo& is_so) const {
    u32 mask = 0;
#pragma unroll 1
    for (u32 rest = sent(word); rest != 0; rest &= rest - 1) {
      const u32 bit = first_bit(rest);
      if (is_so(difference_at(params, block, word * 32 + bit))) mask |= 1U << bit;
    }
    return mask;
  }
  ROSE_DEVICE u32 down(u32 word) const {
    return those(word, [&](u32 difference) { return is_down(difference, block.width); });
  }
  ROSE_DEVICE u32 listed(u32 word) const {
    if (are_all_listed) return sent(word);
    return those(word, [&](u32 difference) { return size_of(difference, block.width) > 1; });
  }
  // The rank among the members of the class.
  ROSE_DEVICE u32 number(u32 word, u32 bit) const {
    u32 rank = members_before;
#pragma unroll 1
    for (u32 i = threadIdx.x * kWordsOfThread; i < word; ++i) rank += count_bits(members(i));
    return rank + count_bits(members(word) & low_mask(bit));
  }
  ROSE_DEVICE u32 size(u32 word, u32 bit) const {
    return size_of(difference_at(params, block, word * 32 + bit), block.width);
  }
};

// What this thread has of one class.
struct ClassCounts {
  u32 members{0};
  u32 changed{0};
  u32 listed{0};
  u32 large{0};
};

ROSE_DEVICE ClassCounts count_class(const ClassSource& source, const StratRule& rule) {
  ClassCounts counts;
  const u32 bits = magnitude_bits_of(rule, source.c);
  const u32 from = source.are_all_listed ? 1 : 2;
#pragma unroll 1
  for (u32 i = 0; i < kWordsOfThread; ++i) {
    const u32 word = threadIdx.x * kWordsOfThread + i;
    counts.members += count_bits(source.members(word));
    counts.changed += count_bits(source.sent(word));
#pragma unroll 1
    for (u32 rest = source.listed(word); rest != 0; rest &= rest - 1) {
      ++counts.listed;
      if ((source.size(word, first_bit(rest)) - from) >> bits != 0) ++counts.large;
    }
  }
  return counts;
}

// Sums of what two u32 hold: members with changed, listed with large.
struct ScannedClass {
  ClassCounts before;
  ClassCounts total;
};

ROSE_DEVICE ScannedClass scan_class(const ClassCounts& counts, ScanShared& shared) {
  const Scanned one = scan(static_cast<u64>(counts.members) << 32 | counts.changed, shared);
  __syncthreads();  // the first sums were read, the second may come
  const Scanned two = scan(static_cast<u64>(counts.listed) << 32 | counts.large, shared);
  __syncthreads();  // these were read too
  const auto of = [](u64 a, u64 b) {
    return ClassCounts{static_cast<u32>(a >> 32), static_cast<u32>(a), static_cast<u32>(b >> 32),
                       static_cast<u32>(b)};
  };
  return {of(one.before, two.before), of(one.total, two.total)};
}

ROSE_DEVICE ClassSource source_of(const StratPackParams& params, const StratBlock& block,
                                  const StratPackShared& shared, u32 c) {
  return {params, block, shared, c, is_all_listed(params.rule, c), 0};
}

// Finds where the classes' sections lie, and how many words the block takes. A thread's counts are
// given again when they are needed.
ROSE_DEVICE void make_layouts(const StratPackParams& params, const StratBlock& block,
                              StratPackShared& shared) {
#pragma unroll 1
  for (u32 c = 0; c < kClasses; ++c) {
    const ClassSource source = source_of(params, block, shared, c);
    const ScannedClass all = scan_class(count_class(source, params.rule), shared.scan);
    if (threadIdx.x == 0) {
      shared.layouts[c].counts = class_counts(params.rule, c, all.total.members, all.total.changed,
                                              all.total.listed, all.total.large);
    }
  }
  if (threadIdx.x == 0) {
    u32 at = 0;
#pragma unroll 1
    for (u32 c = 0; c < kClasses; ++c) {
      const ChangeCounts& counts = shared.layouts[c].counts;
      at += gamma_bits(counts.changed + 1);
      if (counts.changed != 0 && !counts.are_all_listed) at += gamma_bits(counts.listed + 1);
      if (counts.listed != 0) at += gamma_bits(counts.large + 1);
    }
#pragma unroll 1
    for (u32 c = 0; c < kClasses; ++c) {
      const ChangeCounts counts = shared.layouts[c].counts;
      if (counts.changed == 0) continue;
      shared.layouts[c] = class_layout(at, counts, block.width);
      at = shared.layouts[c].end;
    }
    shared.words = words_of(at);
  }
  __syncthreads();  // the layouts are made, all can read them
}

ROSE_DEVICE u32 put_gamma(BitWriter& writer, const BitWindow& window, u32 at, u32 number) {
  const u32 low = floor_log2(number);
  writer.put(window, at + low, 1);
  writer.put(window, at + low + 1, number & low_mask(low));
  return at + gamma_bits(number);
}

// By one thread.
ROSE_DEVICE void put_counts(const StratPackShared& shared, const BitWindow& window) {
  BitWriter writer;
  u32 at = 0;
#pragma unroll 1
  for (u32 c = 0; c < kClasses; ++c) {
    const ChangeCounts& counts = shared.layouts[c].counts;
    at = put_gamma(writer, window, at, counts.changed + 1);
    if (counts.changed != 0 && !counts.are_all_listed) {
      at = put_gamma(writer, window, at, counts.listed + 1);
    }
    if (counts.listed != 0) at = put_gamma(writer, window, at, counts.large + 1);
  }
  writer.flush(window);
}

ROSE_DEVICE void write_strat(const StratPackParams& params, const StratBlock& block,
                             StratPackShared& shared, u32* payload) {
#pragma unroll 1
  for (u32 i = threadIdx.x; i < shared.words; i += blockDim.x) payload[i] = 0;
  __syncthreads();  // the payload is zero, bits can be set
  const BitWindow window{payload, 0, shared.words};
  if (threadIdx.x == 0) put_counts(shared, window);
#pragma unroll 1
  for (u32 c = 0; c < kClasses; ++c) {
    if (shared.layouts[c].counts.changed == 0) continue;  // the same for all threads
    ClassSource source = source_of(params, block, shared, c);
    const ClassCounts before = scan_class(count_class(source, params.rule), shared.scan).before;
    source.members_before = before.members;
    put_positions(source, shared.layouts[c], window, before.changed);
    put_changes(source, shared.layouts[c], window, {before.changed, before.listed, before.large});
  }
}

// One CTA recodes one delta block: it finds the classes of all its elements, counts what each class
// has, and if that takes fewer words, each thread writes the changes of its own kElementsOfThread
// elements, class by class.
ROSE_DEVICE void strat_pack(const StratPackParams& params, StratPackShared& shared) {
  const StratBlock block = strat_block(params, blockIdx.x);
  Entry entry = to_entry(params.entries[blockIdx.x]);
  u64 offset = 0;
  if (entry.kind != kEmpty) {  // the same for all threads
    with_width(params.width, [&](auto zero) {
      fill_planes<decltype(zero)>(params.base, block.first, params.count, params.block_elements,
                                  params.rule, shared.planes);
    });
#pragma unroll 1
    for (u32 i = threadIdx.x; i < params.block_elements; i += blockDim.x) {
      const bool is_changed = i < block.elements && difference_at(params, block, i) != 0;
      const u32 mask = __ballot_sync(kAllLanes, is_changed);
      if (i % 32 == 0) shared.is_changed[i / 32] = mask;
    }
    __syncthreads();  // the masks are whole, threads can read others' parts
    make_layouts(params, block, shared);
    const bool is_strat = shared.words < entry.words;
    const u32 words = is_strat ? shared.words : entry.words;
    if (threadIdx.x == 0) shared.offset = atomic_add(params.cursor, words);
    __syncthreads();  // the place is reserved, all can read it
    offset = shared.offset;
    if (offset > params.arena_words || words > params.arena_words - offset) {
      entry = Entry{kDeferred, 0, 0, 0};
      offset = 0;
    } else if (is_strat) {
      write_strat(params, block, shared, params.arena + offset);
      entry = Entry{kStrat, entry.changed, 0, words};
    } else {
      const u32* from = params.payload + params.offsets[blockIdx.x];
#pragma unroll 1
      for (u32 i = threadIdx.x; i < words; i += blockDim.x) params.arena[offset + i] = from[i];
    }
  }
  if (threadIdx.x == 0) {
    params.link_entries[blockIdx.x] = to_bits(entry);
    params.link_offsets[blockIdx.x] = offset;
  }
}

}  // namespace
}  // namespace rose::kernels

// strat_pack() above.
extern "C" __global__ __launch_bounds__(
    rose::kernels::kThreadsMax,
    rose::kernels::kCtas) void strat_pack_kernel(const rose::kernels::StratPackParams params) {
  __shared__ rose::kernels::StratPackShared shared;
  rose::kernels::strat_pack(params, shared);
}
