// Reads the changes of a block with the threads of a CTA: checks the whole block first, then passes
// its changes to a visitor.
//
// A block whose payload and changes fit into shared memory is *sparse*: its payload is read once,
// its positions and differences are listed, and each thread visits its own changes of the list. The
// payload of a *dense* block stays in global memory, and each lane visits the change of one bit.
#pragma once

#include "block_scan.h"
#include "gap_code.h"
#include "place.h"

namespace rose::kernels {

// Number of changes that a thread visits at once, so that their loads overlap: kTile if they are
// listed (sparse blocks), kBitTile otherwise.
constexpr u32 kTile = 4;
constexpr u32 kBitTile = 2;

// At most kCount changes of a thread; has(k) is true if there is a k-th change. The rank of a
// change is the number of changes before it in the block.
template <u32 kSize>
struct ChangeTile {
  static constexpr u32 kCount = kSize;

  bool is_there[kCount];
  u32 ranks[kCount];
  u32 positions[kCount];
  u32 differences[kCount];

  ROSE_DEVICE bool has(u32 k) const { return is_there[k]; }
  ROSE_DEVICE u32 rank(u32 k) const { return ranks[k]; }
  ROSE_DEVICE u32 position(u32 k) const { return positions[k]; }
  ROSE_DEVICE u32 difference(u32 k) const { return differences[k]; }
};

// A tile of a list in shared memory. Each thread has every blockDim-th change.
struct ListTile {
  static constexpr u32 kCount = kTile;

  const u16* positions;
  const u32* differences;
  u32 changed;
  u32 first;

  ROSE_DEVICE u32 rank(u32 k) const { return first + k * blockDim.x; }
  ROSE_DEVICE bool has(u32 k) const { return rank(k) < changed; }
  ROSE_DEVICE u32 position(u32 k) const { return positions[rank(k)]; }
  ROSE_DEVICE u32 difference(u32 k) const { return differences[rank(k)]; }
};

// Mask words per group in a dense block; see RankMask.
constexpr u32 kDenseGroup = 8;

struct DecodeShared {
  // Words of the two masks of a dense block: one has a bit per change, the other a bit per listed
  // change.
  static constexpr u32 kPoolWords = 2 * (kMaskWordsMax + kMaskWordsMax / kDenseGroup);

  u32 pool[kPoolWords];
  // Number of one bits in each warp's share of the positions, the ranks and the large ranks.
  u32 ones[3][kReadThreadsMax / kWarp];
  ChangeLayout layout;
  bool is_open;  // the result of ChangeReader::open()
  u32 faults;    // not 0: a thread found a fault
};

// Returns the `width` <= 32 bits from bit `at` on. Reads only words that contain some of them.
ROSE_DEVICE u32 field(const u32* words, u32 at, u32 width) {
  if (width == 0) return 0;
  const u32 shift = at % 32;
  const u32 first = at / 32;
  const u32 last = first + (shift + width > 32 ? 1 : 0);
  const u64 bits = words[first] | static_cast<u64>(words[last]) << 32;
  return static_cast<u32>(bits >> shift) & low_mask(width);
}

ROSE_DEVICE bool bit_at(const u32* words, u32 at) { return (words[at / 32] >> at % 32 & 1) != 0; }

// Returns word i of a section that begins at bit `at`, a multiple of 32, and has `bits` bits. The
// word's bits behind the section's end are returned as 0.
ROSE_DEVICE u32 section_word(const u32* words, u32 at, u32 bits, u32 i) {
  const u32 rest = bits - 32 * i;
  return words[at / 32 + i] & low_mask(rest < 32 ? rest : 32);
}

// True if bit `end` is the first of its word, or the bits of its word from `end` on are all 0.
ROSE_DEVICE bool is_tail_clear(const u32* words, u32 end) {
  return end % 32 == 0 || words[end / 32] >> end % 32 == 0;
}

constexpr u32 kSections = 9;

// Returns the end of a section of a GAP or BITMAP block. For a section that the block does not
// have, returns a multiple of 32.
ROSE_DEVICE u32 end_of_section(const ChangeLayout& layout, u32 section) {
  const ChangeCounts& counts = layout.counts;
  const auto end_of_high = [](const EliasFano& code) { return code.high_at + code.high_bits; };
  const auto end_of_low = [](const EliasFano& code) {
    return code.low_at + code.count * code.low_bits;
  };
  const u32 ends[kSections]{end_of_high(layout.positions),
                            end_of_low(layout.positions),
                            layout.signs_at + counts.changed,
                            end_of_high(layout.ranks),
                            end_of_low(layout.ranks),
                            layout.magnitudes_at + counts.listed * counts.magnitude_bits,
                            end_of_high(layout.larges),
                            end_of_low(layout.larges),
                            layout.large_at + counts.large * layout.width};
  u32 end = 0;
#pragma unroll
  for (u32 i = 0; i < kSections; ++i) end = section == i ? ends[i] : end;
  return end;
}

// True if a block of `elements` elements can have the entry's number of changes, and the payload
// contains the block's words.
ROSE_DEVICE bool is_in_payload(const Entry& entry, u32 elements, u64 offset, u64 payload_words) {
  if (entry.changed == 0 || entry.changed > elements) return false;
  return offset <= payload_words && entry.words <= payload_words - offset;
}

// Returns the layout of a GAP or BITMAP block up to the signs.
ROSE_DEVICE ChangeLayout start_of(const Entry& entry, u32 elements, u32 width) {
  const bool are_all = entry.listed != 0 && entry.listed == entry.changed;
  return first_sections(0, {elements, entry.changed, entry.listed, 0, 0, are_all}, width,
                        entry.kind == kBitmap);
}

// ---- shares of a warp ---------------------------------------------------------------------------

// Consecutive words of a section, which one warp handles.
struct WordRange {
  u32 begin;
  u32 end;
};

ROSE_DEVICE WordRange share_of_warp(u32 words) {
  const u32 warps = blockDim.x / kWarp;  // a power of two
  const u32 share = (words + warps - 1) >> floor_log2(warps);
  const u32 begin = threadIdx.x / kWarp * share;
  return {begin, begin + share < words ? begin + share : words};
}

// Returns the sum of the warps' numbers; `before` becomes the sum over lower warps. All threads
// call this, after a barrier.
ROSE_DEVICE u32 sum_of_warps(const u32* of_warps, u32& before) {
  const u32 lane = threadIdx.x % kWarp;
  const u32 one = lane < blockDim.x / kWarp ? of_warps[lane] : 0;
  before = __reduce_add_sync(kAllLanes, lane < threadIdx.x / kWarp ? one : 0);
  return __reduce_add_sync(kAllLanes, one);
}

// Numbers of a section that a lane visits at once.
template <u32 kCount>
struct NumberTile {
  bool has[kCount];           // true if there is a k-th number
  bool is_below[kCount];      // true if it is below the universe
  bool is_ascending[kCount];  // true if it is above the number before it
  u32 index[kCount];
  u32 number[kCount];
};

// A section of a payload: an Elias-Fano code, or a bitmap in which bit p stands for number p.
struct Section {
  const u32* words;
  EliasFano code;
  bool is_bitmap;

  ROSE_DEVICE u32 word(u32 i) const { return section_word(words, code.high_at, code.high_bits, i); }
  ROSE_DEVICE WordRange share() const { return share_of_warp(words_of(code.high_bits)); }
  ROSE_DEVICE u32 low(u32 i) const {
    return field(words, code.low_at + i * code.low_bits, code.low_bits);
  }

  // Returns the number of ones in the warp's share.
  ROSE_DEVICE u32 ones() const {
    const WordRange mine = share();
    u32 sum = 0;
#pragma unroll 1
    for (u32 i = mine.begin + threadIdx.x % kWarp; i < mine.end; i += kWarp) {
      sum += static_cast<u32>(__popc(word(i)));
    }
    return __reduce_add_sync(kAllLanes, sum);
  }

  // Passes the numbers to visit(tile), kCount words of the warp's share at a time, a lane per bit.
  // `before` is the number of ones before the share. The section must have as many ones as numbers.
  template <u32 kCount, typename Visit>
  ROSE_DEVICE void for_each(u32 before, const Visit& visit) const {
    const u32 lane = threadIdx.x % kWarp;
    const WordRange mine = share();
#pragma unroll 1
    for (u32 first = mine.begin; first < mine.end; first += kCount) {
      NumberTile<kCount> tile;
#pragma unroll
      for (u32 k = 0; k < kCount; ++k) {
        const u32 i = first + k;
        const u32 bits = i < mine.end ? word(i) : 0;
        tile.index[k] = before + static_cast<u32>(__popc(bits & low_mask(lane)));
        tile.has[k] = (bits >> lane & 1) != 0;
        before += static_cast<u32>(__popc(bits));
        tile.number[k] = i * 32 + lane;
        tile.is_below[k] = tile.is_ascending[k] = true;
        if (is_bitmap || !tile.has[k]) continue;
        const u32 lows = low(tile.index[k]);
        tile.number[k] = (tile.number[k] - tile.index[k]) << code.low_bits | lows;
        tile.is_below[k] = tile.number[k] < code.universe;
        // Only numbers with neighbouring bits have the same high part and can be out of order.
        const bool is_neighbour = lane > 0 ? (bits >> (lane - 1) & 1) != 0
                                           : i > 0 && bit_at(words, code.high_at + 32 * i - 1);
        tile.is_ascending[k] = !is_neighbour || lows > low(tile.index[k] - 1);
      }
      visit(tile);
    }
  }
};

// ---- GAP and BITMAP -----------------------------------------------------------------------------

// Ranks in shared memory as a bit mask, which threads fill in any order. `first` has the index of
// the lowest rank in each group of kGroup words.
template <u32 kGroup>
struct RankMask {
  u32* bits;
  u32* first;

  ROSE_DEVICE static u32 words(u32 count) {
    return words_of(count) + (words_of(count) + kGroup - 1) / kGroup;
  }
  ROSE_DEVICE static RankMask at(u32* pool, u32 count) { return {pool, pool + words_of(count)}; }

  // All threads call this. A barrier must follow.
  ROSE_DEVICE void clear(u32 count) const {
#pragma unroll 1
    for (u32 i = threadIdx.x; i < words_of(count); i += blockDim.x) {
      bits[i] = 0;
      if (i % kGroup == 0) first[i / kGroup] = ~u32{0};
    }
  }
  // Called once per rank. Callers give a higher rank a higher index.
  ROSE_DEVICE void set(u32 rank, u32 index) const {
    atomicOr(&bits[rank / 32], 1U << rank % 32);
    atomicMin(&first[rank / 32 / kGroup], index);
  }
  ROSE_DEVICE bool has(u32 rank) const { return bit_at(bits, rank); }
  // Returns the index of a rank that was set.
  ROSE_DEVICE u32 index_of(u32 rank) const {
    const u32 word = rank / 32;
    u32 index = first[word / kGroup] + static_cast<u32>(__popc(bits[word] & low_mask(rank % 32)));
    if constexpr (kGroup > 1) {
#pragma unroll 1
      for (u32 i = word / kGroup * kGroup; i < word; ++i) {
        index += static_cast<u32>(__popc(bits[i]));
      }
    }
    return index;
  }
};

// Reads a block. Every thread of the CTA constructs a reader for the block, and all threads call
// each function.
template <bool kIsSparse>
class ChangeReader {
 public:
  using Mask = RankMask<kIsSparse ? 1 : kDenseGroup>;

  // Returns the words of the pool that a sparse block needs.
  ROSE_DEVICE static u32 words_for(const Entry& entry) {
    return entry.words + Mask::words(entry.changed) + Mask::words(entry.listed) + entry.changed +
           words_of(entry.changed * 16);
  }

  ROSE_DEVICE ChangeReader(const Entry& entry, const u32* payload, DecodeShared& shared)
      : shared_{shared} {
    u32* pool = shared.pool;
    words_ = payload;
    if (kIsSparse) {
      words_ = pool;
      pool += entry.words;
    }
    is_listed_ = Mask::at(pool, entry.changed);
    pool += Mask::words(entry.changed);
    is_large_ = Mask::at(pool, entry.listed);
    differences_ = pool + Mask::words(entry.listed);
    positions_ = reinterpret_cast<u16*>(differences_ + entry.changed);
  }

  // Copies the payload if the block is sparse, and computes the layout. One thread computes the
  // layout; if changes are listed, it is the thread that copies the block's shape, word `shape_at`.
  // Returns false if the entry and the shape contradict each other.
  ROSE_DEVICE bool open(const Entry& entry, const u32* payload, u32 elements, u32 width,
                        u32 shape_at) {
    if constexpr (kIsSparse) {
#pragma unroll 4
      for (u32 i = threadIdx.x; i < entry.words; i += blockDim.x) shared_.pool[i] = payload[i];
    }
    // blockDim.x is a power of two.
    const u32 reader = entry.listed != 0 ? shape_at & (blockDim.x - 1) : 0;
    if (threadIdx.x == reader) {
      const u32 shape = entry.listed != 0 ? words_[shape_at] : 0;
      shared_.faults = 0;
      shared_.is_open = (shape & 0xFF) < width && shape >> 8 <= entry.listed;
      if (shared_.is_open) {
        shared_.layout = start_of(entry, elements, width);
        complete(shared_.layout, shape >> 8, shape & 0xFF);
        shared_.is_open = shared_.layout.end == 32 * entry.words;
      }
    }
    __syncthreads();  // separates writing payload and layout from reading them
    return shared_.is_open;
  }

  // Returns true if the sections are well formed, as far as the payload alone shows. Only then may
  // for_each_change() be called.
  ROSE_DEVICE bool prepare() {
    const ChangeCounts& counts = layout().counts;
    if (threadIdx.x < kSections) {
      need(is_tail_clear(words_, end_of_section(layout(), threadIdx.x)));
    }
    if (layout().ranks.count != 0) is_listed_.clear(counts.changed);
    if (counts.large != 0) is_large_.clear(counts.listed);
    if (!count_numbers()) return false;
    if (counts.large != 0) mark_large();
    if (layout().ranks.count != 0) mark_listed();
    if (kIsSparse) list_positions();
    __syncthreads();  // separates filling the masks and the list from reading them
    if (kIsSparse) {
      list_differences();
    } else {
      check_changes();
    }
    __syncthreads();  // separates noting faults from reading them, and all checks from the writes
    return shared_.faults == 0;
  }

  template <typename Visit>
  ROSE_DEVICE void for_each_change(const Visit& visit) const {
    if constexpr (kIsSparse) {
      const u32 changed = layout().counts.changed;
#pragma unroll 1
      for (u32 first = threadIdx.x; first < changed; first += kTile * blockDim.x) {
        visit(ListTile{positions_, differences_, changed, first});
      }
    } else {
      positions().template for_each<kBitTile>(before_[0], [&](const auto& numbers) {
        ChangeTile<kBitTile> tile;
#pragma unroll
        for (u32 k = 0; k < kBitTile; ++k) {
          tile.is_there[k] = numbers.has[k];
          if (!tile.has(k)) continue;
          tile.ranks[k] = numbers.index[k];
          tile.positions[k] = numbers.number[k];
          find_difference(numbers.index[k], tile.differences[k]);
        }
        visit(tile);
      });
    }
  }

 private:
  ROSE_DEVICE const ChangeLayout& layout() const { return shared_.layout; }
  ROSE_DEVICE Section positions() const { return {words_, layout().positions, layout().is_bitmap}; }
  ROSE_DEVICE Section ranks() const { return {words_, layout().ranks, false}; }
  ROSE_DEVICE Section larges() const { return {words_, layout().larges, false}; }

  ROSE_DEVICE void need(bool is_good) {
    if (!is_good) atomicOr(&shared_.faults, 1U);
  }

  // Counts the ones of each section before this warp's share. Returns false if a section has more
  // or fewer ones than numbers.
  ROSE_DEVICE bool count_numbers() {
    const bool has_ranks = layout().ranks.count != 0;
    const bool has_large = layout().larges.count != 0;
    const u32 counts[3]{positions().ones(), has_ranks ? ranks().ones() : 0,
                        has_large ? larges().ones() : 0};
    if (threadIdx.x % kWarp == 0) {
#pragma unroll
      for (u32 i = 0; i < 3; ++i) shared_.ones[i][threadIdx.x / kWarp] = counts[i];
    }
    __syncthreads();  // separates the counts of the warps and clearing the masks from their users
    bool is_good = sum_of_warps(shared_.ones[0], before_[0]) == layout().counts.changed;
    if (has_ranks) {
      is_good = sum_of_warps(shared_.ones[1], before_[1]) == layout().ranks.count && is_good;
    }
    if (has_large) {
      is_good = sum_of_warps(shared_.ones[2], before_[2]) == layout().larges.count && is_good;
    }
    return is_good;
  }

  // Checks the large ranks, and marks the large magnitudes.
  ROSE_DEVICE void mark_large() {
    const u32 bits = layout().counts.magnitude_bits;
    larges().template for_each<1>(before_[2], [&](const NumberTile<1>& tile) {
      if (!tile.has[0]) return;
      const u32 one = tile.number[0];
      const u32 value =
          field(words_, layout().large_at + tile.index[0] * layout().width, layout().width);
      const bool is_good = tile.is_below[0] && tile.is_ascending[0] && value >> bits != 0 &&
                           field(words_, layout().magnitudes_at + one * bits, bits) == 0;
      need(is_good);
      if (is_good) is_large_.set(one, tile.index[0]);
    });
  }

  // Checks the ranks, and marks the listed changes.
  ROSE_DEVICE void mark_listed() {
    ranks().template for_each<1>(before_[1], [&](const NumberTile<1>& tile) {
      if (!tile.has[0]) return;
      const bool is_good = tile.is_below[0] && tile.is_ascending[0];
      need(is_good);
      if (is_good) is_listed_.set(tile.number[0], tile.index[0]);
    });
  }

  ROSE_DEVICE void list_positions() {
    positions().template for_each<kBitTile>(before_[0], [&](const NumberTile<kBitTile>& tile) {
#pragma unroll
      for (u32 k = 0; k < kBitTile; ++k) {
        if (!tile.has[k]) continue;
        need(tile.is_below[k]);
        positions_[tile.index[k]] = static_cast<u16>(tile.number[k]);
      }
    });
  }

  // Checks the listed positions, and lists the differences. Each thread lists the differences of
  // the changes that it visits later.
  ROSE_DEVICE void list_differences() {
#pragma unroll 1
    for (u32 i = threadIdx.x; i < layout().counts.changed; i += blockDim.x) {
      u32 difference = 0;
      need(find_difference(i, difference));
      need(i == 0 || positions_[i - 1] < positions_[i]);
      differences_[i] = difference;
    }
  }

  // Checks the changes of a dense block, which has no list.
  ROSE_DEVICE void check_changes() {
    positions().template for_each<1>(before_[0], [&](const NumberTile<1>& tile) {
      u32 difference = 0;
      if (!tile.has[0]) return;
      need(find_difference(tile.index[0], difference));
      need(tile.is_below[0] && tile.is_ascending[0]);
    });
  }

  // Finds the difference of the i-th change. Returns false if the size of the change is impossible.
  ROSE_DEVICE bool find_difference(u32 i, u32& difference) const {
    const ChangeCounts& counts = layout().counts;
    const bool is_down = bit_at(words_, layout().signs_at + i);
    u32 size = 1;
    bool is_good = true;
    if (counts.are_all_listed || (counts.listed != 0 && is_listed_.has(i))) {
      const u32 half = 1U << (layout().width - 1);
      const u32 most = half - layout().listed_from();
      const u32 one = magnitude(counts.are_all_listed ? i : is_listed_.index_of(i));
      is_good = one < most || (one == most && is_down);
      size = one + layout().listed_from();
    }
    difference = is_down ? 0U - size : size;
    return is_good;
  }

  // Returns the magnitude of the i-th listed change.
  ROSE_DEVICE u32 magnitude(u32 i) const {
    const u32 bits = layout().counts.magnitude_bits;
    if (layout().counts.large != 0 && is_large_.has(i)) {
      const u32 at = layout().large_at + is_large_.index_of(i) * layout().width;
      return field(words_, at, layout().width);
    }
    return field(words_, layout().magnitudes_at + i * bits, bits);
  }

  DecodeShared& shared_;
  const u32* words_;  // the payload
  Mask is_listed_;    // by rank among the changes
  Mask is_large_;     // by rank among the listed changes
  u32* differences_;  // the list of a sparse block
  u16* positions_;
  u32 before_[3];  // ones of each section before this warp's share
};

// ---- RAW ----------------------------------------------------------------------------------------

// Number of nonzero elements in a word of a RAW payload.
ROSE_DEVICE u32 count_elements(u32 word, u32 width) {
  u32 count = 0;
#pragma unroll
  for (u32 at = 0; at < 32; at += 8) {
    if (at % width == 0) count += (word >> at & low_mask(width)) != 0 ? 1 : 0;
  }
  return count;
}

// As read_block(), for a RAW block whose range in the payload is valid.
template <typename Visit>
ROSE_DEVICE bool read_raw(const Entry& entry, u32 elements, u32 width, const u32* payload,
                          DecodeShared& shared, const Visit& visit) {
  if (entry.listed != 0 || entry.words != raw_words(elements, width)) return false;
  if (!is_tail_clear(payload, elements * width)) return false;
  const u32 lane = threadIdx.x % kWarp;
  const WordRange mine = share_of_warp(words_of(elements));
  const u32 end = mine.end * width < entry.words ? mine.end * width : entry.words;
  u32 sum = 0;
#pragma unroll 4
  for (u32 i = mine.begin * width + lane; i < end; i += kWarp) {
    sum += count_elements(payload[i], width);
  }
  sum = __reduce_add_sync(kAllLanes, sum);
  if (lane == 0) shared.ones[0][threadIdx.x / kWarp] = sum;
  __syncthreads();  // separates the counts of the warps from their readers
  u32 before = 0;
  if (sum_of_warps(shared.ones[0], before) != entry.changed) return false;
#pragma unroll 1
  for (u32 first = mine.begin; first < mine.end; first += kBitTile) {
    ChangeTile<kBitTile> tile;
#pragma unroll
    for (u32 k = 0; k < kBitTile; ++k) {
      tile.positions[k] = (first + k) * 32 + lane;
      const bool is_mine = first + k < mine.end && tile.positions[k] < elements;
      tile.differences[k] = is_mine ? load_bits(payload, tile.positions[k], width) : 0;
    }
#pragma unroll
    for (u32 k = 0; k < kBitTile; ++k) {
      tile.is_there[k] = tile.differences[k] != 0;
      const u32 changes = __ballot_sync(kAllLanes, tile.is_there[k]);
      tile.ranks[k] = before + static_cast<u32>(__popc(changes & low_mask(lane)));
      before += static_cast<u32>(__popc(changes));
    }
    visit(tile);
  }
  return true;
}

// ---- any block ----------------------------------------------------------------------------------

template <bool kIsSparse, typename Visit>
ROSE_DEVICE bool read_changes(const Entry& entry, const u32* payload, u32 elements, u32 width,
                              u32 shape_at, DecodeShared& shared, const Visit& visit) {
  ChangeReader<kIsSparse> reader{entry, payload, shared};
  if (!reader.open(entry, payload, elements, width, shape_at) || !reader.prepare()) return false;
  reader.for_each_change(visit);
  return true;
}

// True if read_block() passes the changes of a valid block as a list.
ROSE_DEVICE bool is_listed(const Entry& entry) {
  return entry.kind != kRaw && ChangeReader<true>::words_for(entry) <= DecodeShared::kPoolWords;
}

// Passes the changes of a block that is not EMPTY to visit(tile), if the whole block is valid. All
// threads of the CTA call this; their number is a power of two. Returns false, without a call of
// visit, if the block is corrupt.
template <typename Visit>
ROSE_DEVICE bool read_block(const Entry& entry, u32 elements, u32 width, u64 offset,
                            const u32* payload, u64 payload_words, DecodeShared& shared,
                            const Visit& visit) {
  if (!is_in_payload(entry, elements, offset, payload_words)) return false;
  const u32* words = payload + offset;
  if (entry.kind == kRaw) return read_raw(entry, elements, width, words, shared, visit);
  if (entry.kind != kGap && entry.kind != kBitmap) return false;
  if (entry.listed > entry.changed || entry.words >= raw_words(elements, width)) return false;
  const u32 shape_at = start_of(entry, elements, width).shape_at / 32;
  if (entry.listed != 0 && shape_at >= entry.words) return false;
  if (is_listed(entry)) {
    return read_changes<true>(entry, words, elements, width, shape_at, shared, visit);
  }
  return read_changes<false>(entry, words, elements, width, shape_at, shared, visit);
}

}  // namespace rose::kernels
