// The table of keys behaves like a plain map, for random calls and crowded buckets.
#include "memory/prefix_cache.h"

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "check.h"

using rose::memory::BlockKey;
using rose::memory::PrefixCache;
using rose::memory::Slot;

namespace {

constexpr BlockKey key(std::uint64_t number) { return {number, 0}; }

// By namespace and number of the key: the slot that has it.
using Model = std::map<std::pair<std::string, std::uint64_t>, Slot>;

void erase(Model& model, Slot slot) {
  std::erase_if(model, [&](const auto& one) { return one.second == slot; });
}

bool has_key(const Model& model, Slot slot) {
  for (const auto& [name, at] : model) {
    if (at == slot) return true;
  }
  return false;
}

}  // namespace

TEST(nothing_is_found_before_anything_is_put_in) {
  PrefixCache cache{8};
  CHECK(!cache.find(key(1)).has_value());
  cache.erase(3);
  cache.move(3, 4);
  CHECK_EQ(cache.namespace_of(3), 0);
  CHECK(cache.audit().ok());
}

TEST(keys_differ_in_each_half) {
  PrefixCache cache{8};
  CHECK(cache.insert(0, {1, 2}));
  CHECK(cache.insert(1, {2, 1}));
  CHECK(cache.insert(2, {1, 1}));
  CHECK(cache.find({1, 2}) == Slot{0});
  CHECK(cache.find({2, 1}) == Slot{1});
  CHECK(!cache.find({2, 2}).has_value());
  CHECK(cache.audit().ok());
}

TEST(first_slot_of_a_key_keeps_it) {
  PrefixCache cache{4};
  CHECK(cache.insert(0, key(7)));
  CHECK(!cache.insert(1, key(7)));
  CHECK(cache.insert(0, key(7)));
  CHECK(cache.find(key(7)) == Slot{0});
  CHECK_EQ(cache.namespace_of(1), 0);
  CHECK_EQ(cache.size(), 1);
}

TEST(slot_with_a_new_key_loses_the_old_one) {
  PrefixCache cache{4};
  CHECK(cache.insert(0, key(1)));
  CHECK(cache.insert(0, key(2)));
  CHECK(!cache.find(key(1)).has_value());
  CHECK(cache.find(key(2)) == Slot{0});
  CHECK(cache.audit().ok());
}

TEST(namespace_hides_its_keys_while_another_is_current) {
  PrefixCache cache{4};
  CHECK(cache.insert(0, key(1)));
  const std::uint32_t first = cache.current();
  cache.enter_namespace("second");
  CHECK(cache.current() != first);
  CHECK(!cache.find(key(1)).has_value());
  CHECK(cache.insert(1, key(1)));
  CHECK(cache.find(key(1)) == Slot{1});
  CHECK_EQ(cache.namespace_of(0), first);
  cache.enter_namespace("");
  CHECK(cache.find(key(1)) == Slot{0});
  CHECK(cache.audit().ok());
}

TEST(namespaces_without_keys_take_no_room) {
  PrefixCache cache{4};
  CHECK(cache.insert(0, key(1)));
  std::uint32_t most = 0;
  for (int version = 0; version < 1000; ++version) {
    cache.enter_namespace("version " + std::to_string(version));
    CHECK(cache.insert(1, key(1)));
    cache.erase(1);
    most = std::max(most, cache.current());
  }
  CHECK(most <= 3);
}

TEST(random_calls_do_what_a_map_does) {
  std::mt19937 random{5};
  constexpr Slot kSlots = 13;  // half of 32 buckets, and runs that wrap around
  PrefixCache cache{kSlots};
  Model model;
  std::string name;
  for (int round = 0; round < 100'000; ++round) {
    const auto slot = static_cast<Slot>(random() % kSlots);
    const std::uint64_t number = random() % 20;
    switch (random() % 8) {
      case 0:
      case 1:
      case 2: {
        const auto found = model.find({name, number});
        const bool is_taken = found != model.end() && found->second != slot;
        CHECK_EQ(cache.insert(slot, key(number)), !is_taken);
        if (is_taken) break;
        erase(model, slot);
        model[{name, number}] = slot;
        break;
      }
      case 3:
      case 4:
        cache.erase(slot);
        erase(model, slot);
        break;
      case 5: {
        const auto to = static_cast<Slot>(random() % kSlots);
        if (has_key(model, to)) break;
        cache.move(slot, to);
        for (auto& [which, at] : model) {
          if (at == slot) at = to;
        }
        break;
      }
      default:
        if (random() % 10 == 0) {
          name = std::to_string(random() % 3);
          cache.enter_namespace(name);
        }
    }
    for (std::uint64_t one = 0; one < 20; ++one) {
      const auto due = model.find({name, one});
      const auto got = cache.find(key(one));
      CHECK_EQ(got.has_value(), due != model.end());
      if (got.has_value()) CHECK_EQ(*got, due->second);
    }
    CHECK_EQ(cache.size(), model.size());
    if (round % 16 == 0) CHECK(cache.audit().ok());
  }
}
