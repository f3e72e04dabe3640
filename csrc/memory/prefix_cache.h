// Finds the block that has the KV of a prefix, by the engine's 16-byte key inside a namespace.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace rose::memory {

// 16 bytes, compared bit by bit; the engine makes them distinct (a hash of the tokens).
struct BlockKey {
  std::uint64_t low{0};
  std::uint64_t high{0};

  bool operator==(const BlockKey&) const = default;
};

// A slot is one block of the pool, numbered densely from 0.
using Slot = std::uint32_t;

// An open-addressing table from (namespace, key) to slot, and its inverse.
//
// A namespace is a model at one version of its weights. Keys are inserted and found in the current
// namespace. Entries of other namespaces stay until they are erased, and are found again when their
// namespace becomes current.
//
// Thread rule: the caller's lock. find(), insert(), erase() and move() take constant time; of
// these, only the first insert() allocates, for all slots at once.
//
// Invariants:
//   1. A slot has at most one key, and a key of a namespace at most one slot.
//   2. Every bucket between the home bucket of an entry and the entry is filled, so a search may
//      stop at the first empty bucket.
//   3. At most half of the buckets are filled, so a search ends.
class PrefixCache {
 public:
  explicit PrefixCache(std::size_t slots) noexcept;

  // The number of the current namespace, >= 1. No two namespaces with keys share a number.
  std::uint32_t current() const noexcept { return current_; }
  // 0 for a slot without a key.
  std::uint32_t namespace_of(Slot slot) const noexcept {
    return slot < namespaces_of_.size() ? namespaces_of_[slot] : 0;
  }
  std::optional<Slot> find(const BlockKey& key) const noexcept;
  // Inserts into the current namespace. False, with nothing changed, if the key already has another
  // slot. The slot loses its former key.
  bool insert(Slot slot, const BlockKey& key) noexcept;
  // No effect on a slot without a key.
  void erase(Slot slot) noexcept;
  // Moves the key of `from`, if any, to `to`, which must have none.
  void move(Slot from, Slot to) noexcept;
  void enter_namespace(std::string_view name) noexcept;

  std::size_t size() const noexcept { return size_; }
  // Internal unless exactly the inserted keys are found in their places.
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
  // The bucket of this key, or the empty bucket into which it would go.
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
