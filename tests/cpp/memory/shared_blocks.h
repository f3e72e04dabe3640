// A tenant of one process whose allocator is recounted after every call.
#pragma once

#include <mutex>
#include <span>
#include <vector>

#include "check.h"
#include "memory/block_allocator.h"

namespace rose::test {

// Slab s has the ids from s * kBlocks on, and all slabs are open.
struct SharedBlocks : memory::SlabWatcher {
  static constexpr std::int32_t kBlocks = 4;

  std::mutex books;
  memory::SlabId slabs;
  memory::BlockAllocator blocks;
  std::vector<memory::SlabId> gone;  // slabs in revocation that became empty

  explicit SharedBlocks(memory::SlabId count)
      : slabs{count},
        blocks{memory::BlockGrid::create(memory::PoolShape{kBlocks, count, 0}, {1, 0, 0}).take(),
               books, *this} {
    for (memory::SlabId slab = 0; slab < count; ++slab) holder().add_slab(slab, 1);
    audit();
  }
  ~SharedBlocks() { audit(); }

  Status on_slab_idle(memory::SlabId slab) noexcept override {
    gone.push_back(slab);
    holder().remove_slab(slab);
    return {};
  }
  memory::SlabHolder& holder() { return blocks; }
  void audit() {
    const std::lock_guard lock{books};
    const Status whole = holder().audit();
    if (!whole.ok()) std::cerr << whole.message() << '\n';
    CHECK(whole.ok());
  }
  // As an arbiter does.
  void revoke(memory::SlabId slab) {
    {
      const std::lock_guard lock{books};
      CHECK(holder().close_slab(slab).ok());
      if (holder().load(slab).is_idle()) CHECK(on_slab_idle(slab).ok());
    }
    audit();
  }

  std::vector<memory::BlockId> alloc(std::size_t n) {
    std::vector<memory::BlockId> ids(n);
    CHECK(blocks.alloc(ids));
    audit();
    return ids;
  }
  bool can_alloc(std::size_t n) {
    std::vector<memory::BlockId> ids(n);
    const bool can = blocks.alloc(ids);
    if (can) CHECK(blocks.free(ids).ok());
    audit();
    return can;
  }
  void free(const std::vector<memory::BlockId>& ids) {
    CHECK(blocks.free(ids).ok());
    audit();
  }
  void share(const std::vector<memory::BlockId>& ids) {
    CHECK(blocks.share(ids).ok());
    audit();
  }
  std::int32_t references(memory::BlockId block) { return blocks.references(block).take(); }

  static std::vector<memory::BlockKey> keys(std::initializer_list<std::uint64_t> numbers) {
    std::vector<memory::BlockKey> all;
    for (const std::uint64_t number : numbers) all.push_back({number, number});
    return all;
  }
  void publish(const std::vector<memory::BlockId>& ids,
               std::initializer_list<std::uint64_t> numbers) {
    CHECK(blocks.publish(ids, keys(numbers)).ok());
    audit();
  }
  std::vector<memory::BlockId> lookup(std::initializer_list<std::uint64_t> numbers) {
    std::vector<memory::BlockId> found(numbers.size());
    found.resize(blocks.lookup(keys(numbers), found));
    return found;
  }
  std::vector<memory::BlockId> acquire(std::initializer_list<std::uint64_t> numbers) {
    std::vector<memory::BlockId> found(numbers.size());
    found.resize(blocks.acquire(keys(numbers), found));
    audit();
    return found;
  }
};

}  // namespace rose::test
