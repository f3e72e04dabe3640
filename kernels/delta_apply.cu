#include "delta_apply.h"

#include <type_traits>

#include "array_of_cta.h"
#include "change_read.h"
#include "eight.h"

namespace rose::kernels {
namespace {

// Number of CTAs of the largest size whose registers must fit into one multiprocessor. Five CTAs
// have five eighths of the multiprocessor's threads. For sm_80, ptxas would spill with five, so
// four must fit there.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr u32 kApplyCtas = 5;
#else
constexpr u32 kApplyCtas = 4;
#endif

// Adds or subtracts the differences of a tile: all loads, then all stores.
template <typename T, typename Tile>
ROSE_DEVICE void add(T* weights, const Tile& tile, const u64* places, bool is_undo) {
  constexpr u32 kCount = Tile::kCount;
  u32 old[kCount];
#pragma unroll
  for (u32 k = 0; k < kCount; ++k) old[k] = tile.has(k) ? weights[places[k]] : 0;
#pragma unroll
  for (u32 k = 0; k < kCount; ++k) {
    if (!tile.has(k)) continue;
    const u32 by = tile.difference(k);
    weights[places[k]] = static_cast<T>(is_undo ? old[k] - by : old[k] + by);
  }
}

// Place of a digest word's elements in memory.
struct WordPlace {
  u64 first;        // index of the word's first element
  u32 count;        // number of elements: fewer at the end of the array
  bool is_aligned;  // true if the elements are one aligned 64-bit word of memory
  u64 offset;       // of the first element
};

template <typename T>
ROSE_DEVICE WordPlace word_place(const ApplyArray& array, u64 element) {
  constexpr u32 kIn = sizeof(u64) / sizeof(T);
  const u64 first = element / kIn * kIn;
  const u64 left = array.count - first;
  const Place place = place_of(array.weights, first);
  const T* address = reinterpret_cast<const T*>(array.weights.base) + place.offset;
  const bool is_aligned = left >= kIn && place.rest >= kIn && array.weights.strides[3] == 1 &&
                          reinterpret_cast<std::uintptr_t>(address) % sizeof(u64) == 0;
  return {first, left < kIn ? static_cast<u32>(left) : kIn, is_aligned, place.offset};
}

template <typename T>
ROSE_DEVICE u64 load_word(const ApplyArray& array, const WordPlace& word) {
  const T* base = reinterpret_cast<const T*>(array.weights.base);
  if (word.is_aligned) return *reinterpret_cast<const u64*>(base + word.offset);
  u64 bits = 0;
#pragma unroll 1
  for (u32 i = 0; i < word.count; ++i) {
    const u64 one = base[place_of(array.weights, word.first + i).offset];
    bits |= one << (8 * sizeof(T) * i);
  }
  return bits;
}

// Applies the differences of a list. The thread with a word's first change makes all changes of the
// word. Returns this thread's part of the digest's change.
template <typename T>
ROSE_DEVICE DigestSum add_words(const ApplyArray& array, u64 first, const ListTile& list,
                                bool is_undo) {
  constexpr u32 kIn = sizeof(u64) / sizeof(T);
  DigestSum sum;
#pragma unroll 1
  for (u32 k = 0; k < ListTile::kCount && list.has(k); ++k) {
    u32 rank = list.rank(k);
    const u32 word = list.positions[rank] / kIn;
    if (rank != 0 && list.positions[rank - 1] / kIn == word) continue;
    const WordPlace place = word_place<T>(array, first + list.positions[rank]);
    const u64 old = load_word<T>(array, place);
    u64 now = old;
#pragma unroll 1
    for (; rank < list.changed && list.positions[rank] / kIn == word; ++rank) {
      const u32 at = list.positions[rank] % kIn;
      const u32 from = static_cast<u32>(old >> (8 * sizeof(T) * at));
      const u32 by = list.differences[rank];
      const T to = static_cast<T>(is_undo ? from - by : from + by);
      const u64 changed = static_cast<T>(to ^ from);
      now ^= changed << (8 * sizeof(T) * at);
      reinterpret_cast<T*>(array.weights.base)[place_of(array.weights, place.first + at).offset] =
          to;
    }
    sum.replace(old, now, DigestKeys::of(place.first / kIn, 0));
  }
  return sum;
}

// Returns the digest of the elements of a block.
template <typename T>
ROSE_DEVICE DigestSum digest_of(const ApplyArray& array, u64 first, u32 elements) {
  DigestSum sum;
#pragma unroll 1
  for (u32 i = threadIdx.x * kEight; i < elements; i += blockDim.x * kEight) {
    const Eight<T> eight = load_eight<T>(array.weights, first + i, array.count);
    add_to_digest(sum, eight, first + i, array.count, 0, 0);
  }
  return sum;
}

// One CTA applies one delta block.
//
// With a digest, a block whose changes are listed is changed word by word. The elements of any
// other block are digested before and after its changes.
template <bool kHasDigest>
ROSE_DEVICE void apply(const DeltaApplyParams& params, DecodeShared& shared) {
  const ApplyArray& array = params.at[array_of_cta(params, blockIdx.x)];
  const u32 number = number_in(array, blockIdx.x);
  // The loads are volatile, so that the second does not wait for the first.
  const u64 bits = static_cast<const volatile u64*>(array.entries)[number];
  const u64 offset = static_cast<const volatile u64*>(array.offsets)[number];
  if (bits == 0) return;
  const u64 first = number * params.block_elements;
  const u64 rest = array.count - first;
  const u32 elements =
      static_cast<u32>(rest < params.block_elements ? rest : params.block_elements);
  const u32 width = static_cast<u32>(array.width);
  const Entry entry = to_entry(bits);
  DigestSum sum;
  if (kHasDigest && !is_listed(entry)) {
    with_width(width, [&](auto zero) { sum -= digest_of<decltype(zero)>(array, first, elements); });
  }
  const bool is_good = read_block(
      entry, elements, width, offset, array.payload, array.payload_words, shared,
      [&](const auto& tile) {
        using Tile = std::remove_cvref_t<decltype(tile)>;
        if constexpr (kHasDigest && std::is_same_v<Tile, ListTile>) {
          with_width(width, [&](auto zero) {
            sum += add_words<decltype(zero)>(array, first, tile, params.is_undo != 0);
          });
        } else {
          u64 places[Tile::kCount];
#pragma unroll
          for (u32 k = 0; k < Tile::kCount; ++k) {
            places[k] = tile.has(k) ? place_of(array.weights, first + tile.position(k)).offset : 0;
          }
          with_width(width, [&](auto zero) {
            add(reinterpret_cast<decltype(zero)*>(array.weights.base), tile, places,
                params.is_undo != 0);
          });
        }
      });
  if (!is_good && threadIdx.x == 0) atomic_min(params.bad_block, number);
  if constexpr (kHasDigest) {
    if (!is_good) return;  // the same for all threads
    if (!is_listed(entry)) {
      __syncthreads();  // separates changing the weights from digesting them
      with_width(width,
                 [&](auto zero) { sum += digest_of<decltype(zero)>(array, first, elements); });
    }
    add_atomically(sum, array.digest);
  }
}

}  // namespace
}  // namespace rose::kernels

using rose::kernels::DeltaApplyParams;
using rose::kernels::kReadThreadsMax;

// See apply() above.
extern "C" __global__ __launch_bounds__(
    kReadThreadsMax,
    rose::kernels::kApplyCtas) void delta_apply_kernel(const __grid_constant__ DeltaApplyParams
                                                           params) {
  __shared__ rose::kernels::DecodeShared shared;
  rose::kernels::apply<false>(params, shared);
}

extern "C" __global__ __launch_bounds__(kReadThreadsMax, 4) void delta_apply_digest_kernel(
    const __grid_constant__ DeltaApplyParams params) {
  __shared__ rose::kernels::DecodeShared shared;
  rose::kernels::apply<true>(params, shared);
}
