// The changes of one warp's share of a flat block of 16-bit elements, as an ascending list.
//
// A lane loads eight elements of both arrays and compares them by words of 64 bits. Words that
// differ wait in a queue until there is one for each lane, so that whole warps do all further work
// on the changes.
#pragma once

#include "block_scan.h"
#include "change_key.h"
#include "change_write.h"
#include "eight.h"

namespace rose::kernels {

constexpr u32 kInWord = 4;  // elements of a digest word

// A ring. Fewer than kWarp words wait in it before each lane adds up to two more.
struct WordQueue {
  static constexpr u32 kSize = 3 * kWarp;

  u64 now[kSize];
  u64 old[kSize];
  u16 index[kSize];  // index of the word in the block
  DigestKeys keys;   // of the block's first word
};

// Returns `at` modulo kSize, for `at` < 2 * kSize. If `at` < kSize, `next` wraps to a large number.
ROSE_DEVICE u32 in_ring(u32 at) {
  const u32 next = at - WordQueue::kSize;
  return at < next ? at : next;
}

template <u32 kMax>
struct ChangeList {
  u32 changes[kMax];  // upper half: position in the block; lower half: difference
  u16 values[kMax];   // new bits of the element
};

// State of a warp's growing list. All members but `far` and `sum` are equal in all lanes.
struct ListState {
  u32 first{0};    // place of the first waiting word in the ring
  u32 waiting{0};  // words in the ring
  u32 listed{0};   // changes so far, also those for which the list has no room
  u32 far{0};      // this lane's changes with a size other than 1
  DigestSum sum;   // this lane's part of the digest's change
};

// Compares two words of four elements each: bit i of the result is 1 if element i differs.
ROSE_DEVICE u32 changed_elements(u64 now, u64 old) {
  constexpr u32 kLow = 0x7FFF7FFF;
  const auto pair = [&](u32 differs) {
    const u32 tops = (((differs & kLow) + kLow) | differs) & ~kLow;
    return (tops >> 15 | tops >> 30) & 3;
  };
  const u64 differs = now ^ old;
  return pair(static_cast<u32>(differs)) | pair(static_cast<u32>(differs >> 32)) << 2;
}

// Returns `now`, but with the old bits of each element whose key is below `threshold`.
ROSE_DEVICE u64 without_small(u64 now, u64 old, u32 threshold) {
#pragma unroll
  for (u32 i = 0; i < kInWord; ++i) {
    const u16 to = static_cast<u16>(now >> (16 * i));
    const u16 from = static_cast<u16>(old >> (16 * i));
    if (change_key(to, from) < threshold) now ^= static_cast<u64>(to ^ from) << (16 * i);
  }
  return now;
}

// Appends the changes of the first `words` <= kWarp waiting words to the list. All lanes call this.
template <u32 kMax>
ROSE_DEVICE void take_words(const WordQueue& queue, u32 words, const u32* threshold,
                            ChangeList<kMax>& list, ListState& state) {
  const u32 lane = threadIdx.x % kWarp;
  u64 now = 0;
  u64 old = 0;
  u32 index = 0;
  if (lane < words) {
    const u32 at = in_ring(state.first + lane);
    now = queue.now[at];
    old = queue.old[at];
    index = queue.index[at];
    if (threshold != nullptr) now = without_small(now, old, *threshold);
    state.sum.replace(old, now, queue.keys.after(index));
  }
  state.first = in_ring(state.first + words);
  state.waiting -= words;

  u32 changed = changed_elements(now, old);
  u32 at = state.listed + lane;
  if (threshold == nullptr) {  // the same for all lanes; then every word has a change
    state.listed += words;
  } else {
    const u32 ones = __ballot_sync(kAllLanes, changed != 0);
    at = state.listed + count_bits(ones & low_mask(lane));
    state.listed += count_bits(ones);
  }
  if (__ballot_sync(kAllLanes, count_bits(changed) > 1) != 0) {  // few words have two changes
#pragma unroll
    for (u32 i = 2; i <= kInWord; ++i) {
      const u32 lanes = __ballot_sync(kAllLanes, count_bits(changed) >= i);
      at += count_bits(lanes & low_mask(lane));
      state.listed += count_bits(lanes);
    }
  }
#pragma unroll 1
  for (; changed != 0; changed &= changed - 1) {
    const u32 i = first_bit(changed);
    const u32 to = static_cast<u32>(now >> (16 * i)) & 0xFFFF;
    const u32 difference = (to - static_cast<u32>(old >> (16 * i))) & 0xFFFF;
    state.far += ((difference + 1) & 0xFFFF) > 2 ? 1 : 0;
    if (at < kMax) {
      list.changes[at] = (kInWord * index + i) << 16 | difference;
      list.values[at] = static_cast<u16>(to);
    }
    ++at;
  }
}

// Compares eight elements per lane, which are two words. Each lane queues its changed words. While
// at least kWarp words wait, each lane takes one of them.
template <u32 kMax>
ROSE_DEVICE void compare_eight(const Eight<u16>& now, const Eight<u16>& old, u32 index,
                               const u32* threshold, WordQueue& queue, ChangeList<kMax>& list,
                               ListState& state) {
  const u32 below = low_mask(threadIdx.x % kWarp);
  const bool is_first = ((now.words[0] ^ old.words[0]) | (now.words[1] ^ old.words[1])) != 0;
  const bool is_second = ((now.words[2] ^ old.words[2]) | (now.words[3] ^ old.words[3])) != 0;
  const u32 firsts = __ballot_sync(kAllLanes, is_first);
  const u32 seconds = __ballot_sync(kAllLanes, is_second);
  u32 at = in_ring(state.first + state.waiting) + count_bits(firsts & below) +
           count_bits(seconds & below);
  const auto put = [&](u32 i) {
    const u32 slot = in_ring(at++);
    queue.now[slot] = now.digest_word(i);
    queue.old[slot] = old.digest_word(i);
    queue.index[slot] = static_cast<u16>(index + i);
  };
  if (is_first) put(0);
  if (is_second) put(1);
  state.waiting += count_bits(firsts) + count_bits(seconds);
#pragma unroll 1
  while (state.waiting >= kWarp) {
    __syncwarp();  // separates writing the queue from reading it
    take_words(queue, kWarp, threshold, list, state);
    __syncwarp();  // separates reading the queue from writing it again
  }
}

// Lists the changes of this warp's elements, kElementsOfThread per lane. `now` and `old` begin at
// word `index` of the block. If `threshold` is not null, only changes whose key reaches it are
// listed. All lanes call this.
template <u32 kMax>
ROSE_DEVICE void list_changes(const Eight<u16>* now, const Eight<u16>* old, u32 index,
                              const DigestKeys& keys, const u32* threshold, WordQueue& queue,
                              ChangeList<kMax>& list, ListState& state) {
  constexpr u32 kAtOnce = 4;  // of each array; twice as many loads are in flight
  constexpr u32 kOfLane = kElementsOfThread / kEight;
  static_assert(kOfLane % kAtOnce == 0);
  const u32 lane = threadIdx.x % kWarp;
  if (lane == 0) queue.keys = keys;
#pragma unroll 1
  for (u32 first = 0; first < kOfLane; first += kAtOnce) {
    Eight<u16> news[kAtOnce];
    Eight<u16> olds[kAtOnce];
#pragma unroll
    for (u32 i = 0; i < kAtOnce; ++i) news[i] = now[(first + i) * kWarp + lane];
#pragma unroll
    for (u32 i = 0; i < kAtOnce; ++i) olds[i] = old[(first + i) * kWarp + lane];
#pragma unroll
    for (u32 i = 0; i < kAtOnce; ++i) {
      const u32 word = index + ((first + i) * kWarp + lane) * (kEight / kInWord);
      compare_eight(news[i], olds[i], word, threshold, queue, list, state);
    }
  }
  __syncwarp();  // separates writing the queue from reading it
  if (state.waiting != 0) take_words(queue, state.waiting, threshold, list, state);
}

// ---- writing ------------------------------------------------------------------------------------

ROSE_DEVICE void or_field(u32* words, u32 at, u32 field) {
  const u64 shifted = static_cast<u64>(field) << (at % 32);
  const u32 low = static_cast<u32>(shifted);
  const u32 high = static_cast<u32>(shifted >> 32);
  if (low != 0) atomicOr(&words[at / 32], low);
  if (high != 0) atomicOr(&words[at / 32 + 1], high);
}

// Writes the i-th number of an Elias-Fano section.
ROSE_DEVICE void or_number(u32* words, const EliasFano& section, u32 i, u32 number) {
  const u32 high = section.high_at + (number >> section.low_bits) + i;
  atomicOr(&words[high / 32], 1U << high % 32);
  or_field(words, section.low_at + i * section.low_bits, number & low_mask(section.low_bits));
}

// Number of large magnitudes in this lane's part of the warp's list.
ROSE_DEVICE u32 count_large(const u32* changes, u32 listed, const ChangeLayout& layout) {
  u32 large = 0;
#pragma unroll 1
  for (u32 i = threadIdx.x % kWarp; i < listed; i += kWarp) {
    const u32 size = size_of(changes[i] & 0xFFFF, 16);
    const bool is_listed = layout.counts.are_all_listed || size != 1;
    if (is_listed && (size - layout.listed_from()) >> layout.counts.magnitude_bits != 0) ++large;
  }
  return large;
}

// Writes the changes of the warp's list to the sections of a GAP block, one lane per change. The
// words are 0 at first. `before` counts the changes of the lower warps. All lanes call this.
ROSE_DEVICE void or_changes(const u32* changes, u32 listed, const ChangeLayout& layout, u32* words,
                            Before before) {
  const u32 lane = threadIdx.x % kWarp;
  const u32 below = low_mask(lane);
  const ChangeCounts& counts = layout.counts;
#pragma unroll 1
  for (u32 first = 0; first < listed; first += kWarp) {
    const bool is_one = first + lane < listed;
    const u32 change = is_one ? changes[first + lane] : 1;
    const u32 rank = before.changes + first + lane;
    const u32 size = size_of(change & 0xFFFF, 16);
    if (is_one) or_number(words, layout.positions, rank, change >> 16);
    const u32 downs = __ballot_sync(kAllLanes, is_down(change & 0xFFFF, 16));
    if (lane == 0) or_field(words, layout.signs_at + rank, downs);
    if (counts.listed == 0) continue;  // the same for all lanes

    const bool is_listed = is_one && (counts.are_all_listed || size != 1);
    const u32 lists = __ballot_sync(kAllLanes, is_listed);
    const u32 number = before.listed + count_bits(lists & below);
    const u32 magnitude = size - layout.listed_from();
    const bool is_large = is_listed && magnitude >> counts.magnitude_bits != 0;
    const u32 larges = counts.large == 0 ? 0 : __ballot_sync(kAllLanes, is_large);
    if (is_listed && !counts.are_all_listed) or_number(words, layout.ranks, number, rank);
    if (is_large) {
      const u32 one = before.large + count_bits(larges & below);
      or_number(words, layout.larges, one, number);
      or_field(words, layout.large_at + one * layout.width, magnitude);
    } else if (is_listed) {
      or_field(words, layout.magnitudes_at + number * counts.magnitude_bits, magnitude);
    }
    before.listed += count_bits(lists);
    before.large += count_bits(larges);
  }
}

}  // namespace rose::kernels
