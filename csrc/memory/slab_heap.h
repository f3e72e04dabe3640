// Memory for whole tensors, out of slabs that one partition holds.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "memory/pool.h"

namespace rose::memory {

// First fit, lowest address first, over runs of neighbouring slabs: a tensor lies in one run. What
// is freed joins its free neighbours, so that an empty heap is as large as a fresh one.
//
// It has addresses only: whoever makes it holds the slabs (by a pin) and keeps the pool for as long
// as anything is allocated. It never touches the memory, so it serves host and device alike.
//
// Thread rule: any thread. Invariant: no two allocations overlap, and none leaves its run.
class SlabHeap {
 public:
  // InvalidArgument when a slab does not exist or is named twice.
  static Result<std::unique_ptr<SlabHeap>> create(const Pool& pool,
                                                  std::span<const SlabId> slabs) noexcept;

  // Null when no run has so much room in one piece, or nothing is asked for.
  std::byte* alloc(std::size_t size_bytes) noexcept;
  // InvalidArgument, and no change, when `at` is not the start of an allocation.
  Status free(std::byte* at) noexcept;

  std::size_t used_bytes() const noexcept;
  std::size_t size_bytes() const noexcept { return size_bytes_; }
  // The most that alloc() would give at once.
  std::size_t largest_free_bytes() const noexcept;

  // Of every allocation: torch's own for the smallest tensor.
  static constexpr std::size_t kAlignment = 512;

 private:
  SlabHeap() noexcept = default;

  std::size_t size_bytes_{0};
  mutable std::mutex books_;  // guards everything below
  // By address, with sizes. Runs have a gap between them, so free pieces of two never touch.
  std::map<std::byte*, std::size_t> free_;
  std::map<std::byte*, std::size_t> used_;
  std::size_t used_bytes_{0};
};

}  // namespace rose::memory
