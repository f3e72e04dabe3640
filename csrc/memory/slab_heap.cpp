#include "memory/slab_heap.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

namespace rose::memory {

Result<std::unique_ptr<SlabHeap>> SlabHeap::create(const Pool& pool,
                                                   std::span<const SlabId> slabs) noexcept {
  std::vector<SlabId> ordered{slabs.begin(), slabs.end()};
  std::ranges::sort(ordered);
  const PoolShape& shape = pool.shape();
  std::unique_ptr<SlabHeap> heap{new SlabHeap};
  for (std::size_t first = 0; first < ordered.size();) {
    std::size_t next = first + 1;
    while (next < ordered.size() && ordered[next] == ordered[next - 1] + 1) ++next;
    if (ordered[first] < 0 || ordered[next - 1] >= shape.slab_count) {
      return Status::invalid_argument(
          "no slab " + std::to_string(ordered[first] < 0 ? ordered[first] : ordered[next - 1]));
    }
    if (next < ordered.size() && ordered[next] == ordered[next - 1]) {
      return Status::invalid_argument("slab " + std::to_string(ordered[next]) + " is named twice");
    }
    const std::size_t run_bytes = (next - first) * shape.slab_bytes;
    heap->free_.emplace(pool.data() + shape.slab_base(ordered[first]), run_bytes);
    heap->size_bytes_ += run_bytes;
    first = next;
  }
  return heap;
}

std::byte* SlabHeap::alloc(std::size_t size_bytes) noexcept {
  if (size_bytes == 0 || size_bytes > size_bytes_) return nullptr;
  const std::size_t whole = (size_bytes + kAlignment - 1) / kAlignment * kAlignment;
  const std::lock_guard lock{books_};
  const auto found =
      std::ranges::find_if(free_, [&](const auto& piece) { return piece.second >= whole; });
  if (found == free_.end()) return nullptr;
  const auto [at, room] = *found;
  free_.erase(found);
  if (room > whole) free_.emplace(at + whole, room - whole);
  used_.emplace(at, whole);
  used_bytes_ += whole;
  return at;
}

Status SlabHeap::free(std::byte* at) noexcept {
  const std::lock_guard lock{books_};
  const auto found = used_.find(at);
  if (found == used_.end()) return Status::invalid_argument("nothing is allocated there");
  std::size_t size_bytes = found->second;
  used_.erase(found);
  used_bytes_ -= size_bytes;
  const auto after = free_.find(at + size_bytes);
  if (after != free_.end()) {
    size_bytes += after->second;
    free_.erase(after);
  }
  const auto next = free_.lower_bound(at);
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == at) {
      before->second += size_bytes;
      return {};
    }
  }
  free_.emplace(at, size_bytes);
  return {};
}

std::size_t SlabHeap::used_bytes() const noexcept {
  const std::lock_guard lock{books_};
  return used_bytes_;
}

std::size_t SlabHeap::largest_free_bytes() const noexcept {
  const std::lock_guard lock{books_};
  std::size_t largest = 0;
  for (const auto& [at, room] : free_) largest = std::max(largest, room);
  return largest;
}

}  // namespace rose::memory
