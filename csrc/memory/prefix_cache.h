// Which block holds the KV of which prefix: 16-byte keys of the engine, inside a namespace.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace rose::memory {

// 16 bytes, compared bit by bit; whoever makes them must make them differ (a hash of the tokens).
struct BlockKey {
  std::uint64_t low{0};
  std::uint64_t high{0};

  bool operator==(const BlockKey&) const = default;
};

// A slot is one block of the pool, numbered densely from 0.
using Slot = std::uint32_t;

// An open-addressing table from (namespace, key) to slot, and the way back.
//
// A namespace is a model at one version of its weights. One is current: keys go in there and are
// found there. What is in the others stays until it is erased, and is found again when its
// namespace becomes current again.
//
// Thread rule: the caller's lock. Constant time each; memory for all slots is taken at the first
// insert() and at no other time.
//
// Invariants:
//   1. A slot has at most one key, and a key of a namespace at most one slot.
//   2. From the home of an entry to the entry no bucket is empty, so a search may stop at the
//   first.
//   3. At most half of the buckets are filled, so a search ends.
class PrefixCache {
 public:
  explicit PrefixCache(std::size_t slots) noexcept;

  // The number of the current namespace; others have others.
  std::uint32_t current() const noexcept { return current_; }
  // 0 for a slot without a key.
  std::uint32_t namespace_of(Slot slot) const noexcept {
    return slot < namespaces_of_.size() ? namespaces_of_[slot] : 0;
  }
  std::optional<Slot> find(const BlockKey& key) const noexcept;
  // In the current namespace. False, and nothing changed, when the key has another slot already. A
  // slot that had another key loses it.
  bool insert(Slot slot, const BlockKey& key) noexcept;
  // A slot without a key stays as it is.
  void erase(Slot slot) noexcept;
  // The key of `from`, if it has one, becomes that of `to`, which has none.
  void move(Slot from, Slot to) noexcept;
  void enter_namespace(std::string_view name) noexcept;

  std::size_t size() const noexcept { return size_; }
  // Internal unless every key is found where it should be, and nothing else.
  Status audit() const noexcept;

 private:
  struct Bucket {
    std::uint32_t slot_and_one{0};  // 0: empty
    std::uint32_t hash{0};
  };
  struct Namespace {
    std::string name;
    std::size_t keys{0};
  };

  void make_room() noexcept;
  std::size_t mask() const noexcept { return table_.size() - 1; }
  // The bucket of this key, or the empty one where it would go.
  std::size_t bucket_of(const BlockKey& key, std::uint32_t in_namespace) const noexcept;
  std::size_t bucket_of(Slot slot) const noexcept;
  void put(std::size_t bucket, Slot slot, const BlockKey& key, std::uint32_t in_namespace) noexcept;

  std::size_t slots_;
  std::size_t size_{0};
  std::vector<Bucket> table_;                  // a power of two
  std::vector<BlockKey> keys_;                 // by slot
  std::vector<std::uint32_t> namespaces_of_;   // by slot; 0: no key
  std::vector<Namespace> namespaces_{{}, {}};  // by number; 0 is none
  std::uint32_t current_{1};
};

}  // namespace rose::memory
