#include "strat_unpack.h"

#include "change_read.h"
#include "eight.h"

namespace rose::kernels {
namespace {

struct StratUnpackShared {
  DecodeShared decode;
  ChangeLayout layouts[kClasses];
  u32 class_sizes[kClasses];
  // Of the class that is being read.
  alignas(16) u32 is_member[kMaskWordsMax];
  u16 members_before[kMaskWordsMax];
};

// Calls visit(i, eight, inside) for eight elements at a time, of which `inside` are a bit each.
template <typename T, typename Visit>
ROSE_DEVICE void for_each_eight(const StratUnpackParams& params, const StratBlock& block,
                                const Visit& visit) {
#pragma unroll 1
  for (u32 i = threadIdx.x; i < params.block_elements / kEight; i += blockDim.x) {
    const u64 at = block.first + i * kEight;
    const u64 rest = at < params.count ? params.count - at : 0;
    visit(i, load_eight<T>(params.base, at, params.count),
          low_mask(rest < kEight ? static_cast<u32>(rest) : kEight));
  }
}

// Counts the elements of each class. All threads of the CTA call it; a barrier must follow.
ROSE_DEVICE void count_classes(const StratUnpackParams& params, const StratBlock& block,
                               StratUnpackShared& shared) {
  if (threadIdx.x < kClasses) shared.class_sizes[threadIdx.x] = 0;
  __syncthreads();  // the sizes are zero, elements can be counted
  u64 counts = 0;   // a byte for each class: a thread has kElementsOfThread elements
  static_assert(kElementsOfThread < 256);
  with_width(params.width, [&](auto zero) {
    for_each_eight<decltype(zero)>(params, block, [&](u32, const auto& eight, u32 inside) {
#pragma unroll
      for (u32 j = 0; j < kEight; ++j) {
        const u64 one = inside >> j & 1;
        counts += one << (8 * class_of(eight.at(j), params.rule));
      }
    });
  });
#pragma unroll 1
  for (u32 c = 0; c < kClasses; ++c) {
    const u32 count = static_cast<u32>(counts >> (8 * c) & 0xFF);
    if (count != 0) atomicAdd(&shared.class_sizes[c], count);
  }
}

// Reads fields off a stream that ends at bit `end`. Behind it there are none.
struct Counter {
  const u32* words;
  u32 end;
  u32 at{0};
  bool is_good{true};

  // Gamma less 1. At most 65,536 elements are counted, so at most 16 zeros lead.
  ROSE_DEVICE u32 count() {
    u32 low = 0;
#pragma unroll 1
    while (low <= 16 && at < end && field(words, at, 1) == 0) {
      ++low;
      ++at;
    }
    if (low > 16 || end - at < low + 1) {
      is_good = false;
      return 0;
    }
    const u32 number = 1U << low | field(words, at + 1, low);
    at += low + 1;
    return number - 1;
  }
};

// Finds the layouts of the classes. False: what the counts say does not go together. By one thread.
ROSE_DEVICE bool read_classes(const StratUnpackParams& params, const StratBlock& block,
                              const Entry& entry, const u32* payload, StratUnpackShared& shared) {
  Counter counter{payload, 32 * entry.words};
  u32 sum = 0;
#pragma unroll 1
  for (u32 c = 0; c < kClasses; ++c) {
    const u32 universe = shared.class_sizes[c];
    const u32 changed = counter.count();
    u32 listed = 0;
    if (changed != 0) listed = is_all_listed(params.rule, c) ? changed : counter.count();
    const u32 large = listed == 0 ? 0 : counter.count();
    if (changed > universe || listed > changed || large > listed) return false;
    shared.layouts[c].counts = class_counts(params.rule, c, universe, changed, listed, large);
    sum += changed;
  }
  if (!counter.is_good || sum != entry.changed) return false;
  u32 at = counter.at;
#pragma unroll 1
  for (u32 c = 0; c < kClasses; ++c) {
    const ChangeCounts counts = shared.layouts[c].counts;
    if (counts.changed == 0) continue;
    shared.layouts[c] = class_layout(at, counts, block.width);
    at = shared.layouts[c].end;
  }
  return words_of(at) == entry.words && is_tail_clear(payload, 0, at);
}

// Finds which elements are of class c. All threads of the CTA call it.
ROSE_DEVICE void fill_members(const StratUnpackParams& params, const StratBlock& block, u32 c,
                              StratUnpackShared& shared) {
  u8* is_member = reinterpret_cast<u8*>(shared.is_member);
  with_width(params.width, [&](auto zero) {
    for_each_eight<decltype(zero)>(params, block, [&](u32 i, const auto& eight, u32 inside) {
      u32 mask = 0;
#pragma unroll
      for (u32 j = 0; j < kEight; ++j) {
        mask |= (class_of(eight.at(j), params.rule) == c ? 1U : 0U) << j;
      }
      is_member[i] = static_cast<u8>(mask & inside);
    });
  });
  __syncthreads();  // the mask is whole, it can be counted
  count_mask(shared.is_member, block.elements, shared.members_before, shared.decode);
}

// The place in the block of the member of rank `rank`, which there is.
ROSE_DEVICE u32 member_at(const StratUnpackShared& shared, u32 elements, u32 rank) {
  u32 low = 0;
  u32 high = words_of(elements);
#pragma unroll 1
  while (high - low > 1) {
    const u32 middle = (low + high) / 2;
    if (shared.members_before[middle] <= rank) {
      low = middle;
    } else {
      high = middle;
    }
  }
  u32 rest = shared.is_member[low];
#pragma unroll 1
  for (u32 i = shared.members_before[low]; i < rank; ++i) rest &= rest - 1;
  return low * 32 + static_cast<u32>(__ffs(static_cast<int>(rest))) - 1;
}

ROSE_DEVICE bool unpack_class(const StratUnpackParams& params, const StratBlock& block, u32 c,
                              const u32* payload, StratUnpackShared& shared) {
  const ChangeLayout& layout = shared.layouts[c];
  fill_members(params, block, c, shared);
  if (!prepare_changes(payload, layout, shared.decode)) return false;
  for_each_change(payload, layout, shared.decode, [&](u32, u32 rank, u32 difference) {
    const u64 at = block.first + member_at(shared, block.elements, rank);
    store_bits(params.differences, at, block.width, difference);
  });
  __syncthreads();  // the masks were read, those of the next class can be written
  return true;
}

// One CTA reads one delta block, class by class.
ROSE_DEVICE bool strat_unpack(const StratUnpackParams& params, const Entry& entry,
                              StratUnpackShared& shared) {
  const StratBlock block = strat_block(params, blockIdx.x);
  const u64 offset = params.offsets[blockIdx.x];
  count_classes(params, block, shared);
  __syncthreads();  // the classes are counted, the first thread can read what they change
  if (threadIdx.x == 0) {
    shared.decode.is_good = entry.listed == 0 &&
                            entry.words < raw_words(block.elements, block.width) &&
                            is_in_payload(entry, block.elements, offset, params.payload_words) &&
                            read_classes(params, block, entry, params.payload + offset, shared);
  }
  __syncthreads();  // the layouts are there, all can read them
  if (!shared.decode.is_good) return false;
#pragma unroll 1
  for (u32 c = 0; c < kClasses; ++c) {
    if (shared.layouts[c].counts.changed == 0) continue;  // the same for all threads
    if (!unpack_class(params, block, c, params.payload + offset, shared)) return false;
  }
  return true;
}

}  // namespace
}  // namespace rose::kernels

// strat_unpack() above.
extern "C" __global__ __launch_bounds__(
    rose::kernels::kThreadsMax,
    rose::kernels::kCtas) void strat_unpack_kernel(const rose::kernels::StratUnpackParams params) {
  using namespace rose::kernels;
  __shared__ StratUnpackShared shared;
  const Entry entry = to_entry(params.entries[blockIdx.x]);
  if (entry.kind != kStrat || strat_unpack(params, entry, shared)) return;
  if (threadIdx.x == 0) atomic_min(params.bad_block, blockIdx.x);
}
