#include "memory/prefix_cache.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace rose::memory {

namespace {

// The finaliser of splitmix64: keys need not be random, only different.
constexpr std::uint64_t mix(std::uint64_t bits) noexcept {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9U;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebU;
  return bits ^ (bits >> 31);
}

constexpr std::uint32_t hash_of(const BlockKey& key, std::uint32_t in_namespace) noexcept {
  const std::uint64_t low = mix(key.low + 0x9e3779b97f4a7c15U * in_namespace);
  return static_cast<std::uint32_t>(mix(low ^ key.high) >> 32);
}

}  // namespace

PrefixCache::PrefixCache(std::size_t slots) noexcept : slots_{slots} {}

void PrefixCache::make_room() noexcept {
  table_.resize(std::bit_ceil(2 * slots_));
  keys_.resize(slots_);
  namespaces_of_.resize(slots_, 0);
}

std::size_t PrefixCache::bucket_of(const BlockKey& key, std::uint32_t in_namespace) const noexcept {
  const std::uint32_t hash = hash_of(key, in_namespace);
  std::size_t at = hash & mask();
  for (; table_[at].slot_and_one != 0; at = (at + 1) & mask()) {
    if (table_[at].hash != hash) continue;
    const Slot slot = table_[at].slot_and_one - 1;
    if (namespaces_of_[slot] == in_namespace && keys_[slot] == key) break;
  }
  return at;
}

std::size_t PrefixCache::bucket_of(Slot slot) const noexcept {
  std::size_t at = hash_of(keys_[slot], namespaces_of_[slot]) & mask();
  while (table_[at].slot_and_one != slot + 1) at = (at + 1) & mask();
  return at;
}

std::optional<Slot> PrefixCache::find(const BlockKey& key) const noexcept {
  if (size_ == 0) return std::nullopt;
  const Bucket& bucket = table_[bucket_of(key, current_)];
  if (bucket.slot_and_one == 0) return std::nullopt;
  return bucket.slot_and_one - 1;
}

bool PrefixCache::insert(Slot slot, const BlockKey& key) noexcept {
  if (table_.empty()) make_room();
  const Bucket& found = table_[bucket_of(key, current_)];
  if (found.slot_and_one != 0) return found.slot_and_one == slot + 1;
  erase(slot);  // erase() may move buckets, so the search starts again
  put(bucket_of(key, current_), slot, key, current_);
  return true;
}

void PrefixCache::put(std::size_t bucket, Slot slot, const BlockKey& key,
                      std::uint32_t in_namespace) noexcept {
  table_[bucket] = {slot + 1, hash_of(key, in_namespace)};
  keys_[slot] = key;
  namespaces_of_[slot] = in_namespace;
  ++namespaces_[in_namespace].keys;
  ++size_;
}

void PrefixCache::erase(Slot slot) noexcept {
  if (namespace_of(slot) == 0) return;
  std::size_t hole = bucket_of(slot);
  --namespaces_[std::exchange(namespaces_of_[slot], 0)].keys;
  --size_;
  // Moves each later entry into the hole if a search would no longer reach it.
  for (std::size_t at = (hole + 1) & mask(); table_[at].slot_and_one != 0; at = (at + 1) & mask()) {
    const std::size_t from_home = (at - table_[at].hash) & mask();
    if (from_home < ((at - hole) & mask())) continue;
    table_[hole] = table_[at];
    hole = at;
  }
  table_[hole] = {};
}

void PrefixCache::move(Slot from, Slot to) noexcept {
  const std::uint32_t in_namespace = namespace_of(from);
  if (in_namespace == 0) return;
  table_[bucket_of(from)].slot_and_one = to + 1;
  keys_[to] = keys_[from];
  namespaces_of_[to] = in_namespace;
  namespaces_of_[from] = 0;
}

void PrefixCache::enter_namespace(std::string_view name) noexcept {
  const auto known = std::ranges::find_if(namespaces_.begin() + 1, namespaces_.end(),
                                          [&](const Namespace& one) { return one.name == name; });
  if (known != namespaces_.end()) {
    current_ = static_cast<std::uint32_t>(known - namespaces_.begin());
    return;
  }
  // A namespace without keys can be reused, because no lookup can tell the difference.
  const auto spare = std::ranges::find_if(namespaces_.begin() + 1, namespaces_.end(),
                                          [](const Namespace& one) { return one.keys == 0; });
  current_ = static_cast<std::uint32_t>(spare - namespaces_.begin());
  if (spare == namespaces_.end()) namespaces_.emplace_back();
  namespaces_[current_].name = name;
}

Status PrefixCache::audit() const noexcept {
  std::size_t keys = 0;
  std::vector<std::size_t> in_namespace(namespaces_.size(), 0);
  for (Slot slot = 0; slot < namespaces_of_.size(); ++slot) {
    if (namespaces_of_[slot] == 0) continue;
    ++keys;
    ++in_namespace[namespaces_of_[slot]];
    const Bucket& found = table_[bucket_of(keys_[slot], namespaces_of_[slot])];
    ROSE_CHECK(found.slot_and_one == slot + 1, "a cached prefix is not found by its key");
  }
  const auto filled = static_cast<std::size_t>(
      std::ranges::count_if(table_, [](const Bucket& one) { return one.slot_and_one != 0; }));
  ROSE_CHECK(keys == size_ && filled == size_,
             "the prefix cache has a number of keys or filled buckets that differs from its count");
  for (std::size_t index = 1; index < namespaces_.size(); ++index) {
    ROSE_CHECK(in_namespace[index] == namespaces_[index].keys,
               "a namespace of the prefix cache has a number of keys that differs from its count");
  }
  return {};
}

}  // namespace rose::memory
