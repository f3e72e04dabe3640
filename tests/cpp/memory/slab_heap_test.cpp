// A heap in slabs: first fit, whole again when it is empty, and safe in many threads.
#include "memory/slab_heap.h"

#include <array>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "memory/host_memfd.h"
#include "memory/pool.h"

using rose::memory::HostMemfd;
using rose::memory::Pool;
using rose::memory::SlabHeap;
using rose::memory::SlabId;

namespace {

constexpr std::size_t kSlab = 65536;

Pool create() { return Pool::create(std::make_unique<HostMemfd>(), {kSlab, 6, 1}).take(); }

// Fills its own pieces and finds them as they were, again and again.
void work(SlabHeap& heap, int value) {
  std::vector<std::pair<std::byte*, std::size_t>> pieces;
  for (std::size_t round = 0; round < 300; ++round) {
    const std::size_t size_bytes = 512 * (1 + (round * 7) % 13);
    std::byte* at = heap.alloc(size_bytes);
    if (at != nullptr) {
      std::memset(at, value, size_bytes);
      pieces.emplace_back(at, size_bytes);
    }
    if (at != nullptr && pieces.size() < 8) continue;
    for (const auto& [piece, bytes] : pieces) {
      for (std::size_t i = 0; i < bytes; i += 64) CHECK(piece[i] == static_cast<std::byte>(value));
      CHECK(heap.free(piece).ok());
    }
    pieces.clear();
  }
  for (const auto& [piece, bytes] : pieces) CHECK(heap.free(piece).ok());
}

}  // namespace

TEST(pieces_lie_in_one_run_and_apart) {
  const Pool pool = create();
  const auto heap = SlabHeap::create(pool, std::array<SlabId, 3>{4, 0, 1}).take();
  CHECK_EQ(heap->size_bytes(), 3 * kSlab);
  CHECK_EQ(heap->largest_free_bytes(), 2 * kSlab);
  CHECK(heap->alloc(2 * kSlab + 1) == nullptr);
  std::byte* first = heap->alloc(1);
  std::byte* second = heap->alloc(513);
  CHECK(first == pool.data() + kSlab);
  CHECK(second == first + 512);
  CHECK_EQ(heap->used_bytes(), 512u + 1024u);
  CHECK(heap->alloc(2 * kSlab) == nullptr);
  CHECK(heap->alloc(kSlab) == second + 1024);
  CHECK(heap->alloc(kSlab) == pool.data() + 5 * kSlab);
  CHECK(heap->free(first).ok());
  CHECK(!heap->free(first).ok());
  CHECK(!heap->free(second + 512).ok());
  CHECK(heap->free(second).ok());
  CHECK(heap->alloc(1536) == first);
  CHECK(heap->alloc(0) == nullptr);
}

TEST(threads_never_share_a_piece) {
  const Pool pool = create();
  const auto heap = SlabHeap::create(pool, std::array<SlabId, 2>{2, 3}).take();
  std::vector<std::thread> threads;
  for (int value = 1; value <= 3; ++value) threads.emplace_back([&, value] { work(*heap, value); });
  for (std::thread& one : threads) one.join();
  CHECK_EQ(heap->used_bytes(), 0u);
  CHECK_EQ(heap->largest_free_bytes(), 2 * kSlab);
}

TEST_MAIN()
