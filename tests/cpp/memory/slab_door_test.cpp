// An allocator whose arbiter is behind a door: it enters a slab before the first use and leaves it
// after the last, loses idle slabs, gives no block of closed ones, and always takes all blocks or
// none.
#include "memory/slab_door.h"

#include <algorithm>
#include <mutex>
#include <random>
#include <vector>

#include "check.h"
#include "memory/block_allocator.h"

using rose::Code;
using rose::memory::BlockAllocator;
using rose::memory::BlockGrid;
using rose::memory::BlockId;
using rose::memory::BlockKey;
using rose::memory::PinId;
using rose::memory::PoolShape;
using rose::memory::SlabDoor;
using rose::memory::SlabHolder;
using rose::memory::SlabId;

namespace {

constexpr SlabId kSlabs = 4;
constexpr std::int32_t kBlocks = 4;  // slab s has the ids from s * kBlocks on

enum class Word { kAbsent, kIdle, kBusy, kClosed };

// The words of a mailbox, and the arbiter's moves. Refuses moves outside the table.
class FakeDoor final : public SlabDoor {
 public:
  bool has_news() noexcept override { return std::exchange(news_, false); }
  bool is_open(SlabId slab, std::uint32_t generation) const noexcept override {
    const Word word = words[index(slab)];
    return generations[index(slab)] == generation && (word == Word::kIdle || word == Word::kBusy);
  }
  bool enter(SlabId slab, std::uint32_t generation) noexcept override {
    if (generations[index(slab)] != generation) return false;
    if (words[index(slab)] == Word::kAbsent) return false;
    CHECK(words[index(slab)] == Word::kIdle);  // never entered twice
    words[index(slab)] = Word::kBusy;
    return true;
  }
  bool leave(SlabId slab, std::uint32_t generation) noexcept override {
    CHECK_EQ(generations[index(slab)], generation);
    const bool stays = words[index(slab)] == Word::kBusy;
    CHECK(stays || words[index(slab)] == Word::kClosed);  // never left twice
    words[index(slab)] = stays ? Word::kIdle : Word::kAbsent;
    return stays;
  }
  void on_unpinned(SlabId) noexcept override {}

  std::uint32_t grant(SlabId slab) {
    CHECK(words[index(slab)] == Word::kAbsent);
    words[index(slab)] = Word::kIdle;
    return ++generations[index(slab)];
  }
  // Takes an idle slab at once and closes a busy one, as a revocation does.
  void revoke(SlabId slab) {
    Word& word = words[index(slab)];
    if (word == Word::kIdle) word = Word::kAbsent;
    if (word == Word::kBusy) word = Word::kClosed;
    news_ = true;
  }
  // An arbiter whose news has not arrived yet.
  void revoke_silently(SlabId slab) {
    revoke(slab);
    news_ = false;
  }
  bool is(SlabId slab, Word word) const { return words[index(slab)] == word; }

  std::vector<Word> words = std::vector<Word>(kSlabs, Word::kAbsent);
  std::vector<std::uint32_t> generations = std::vector<std::uint32_t>(kSlabs, 0);

 private:
  static std::size_t index(SlabId slab) { return static_cast<std::size_t>(slab); }
  bool news_{false};
};

struct Tenant {
  std::mutex books;
  FakeDoor door;
  BlockAllocator blocks{BlockGrid::create(PoolShape{kBlocks, kSlabs, 0}, {1, 0, 0}).take(), books,
                        door};

  explicit Tenant(SlabId granted = kSlabs) {
    for (SlabId slab = 0; slab < granted; ++slab) admit(slab);
  }
  ~Tenant() { audit(); }

  void admit(SlabId slab) { CHECK(blocks.admit_slab(slab, door.grant(slab)).ok()); }
  void audit() {
    const std::lock_guard lock{books};
    CHECK(static_cast<const SlabHolder&>(blocks).audit().ok());
  }
  std::vector<BlockId> alloc(std::size_t n) {
    std::vector<BlockId> ids(n);
    CHECK(blocks.alloc(ids));
    audit();
    return ids;
  }
  bool can_alloc(std::size_t n) {
    std::vector<BlockId> ids(n);
    const bool can = blocks.alloc(ids);
    audit();
    if (can) free(ids);
    return can;
  }
  void free(const std::vector<BlockId>& ids) {
    CHECK(blocks.free(ids).ok());
    audit();
  }
  SlabId slab_of(BlockId block) const { return blocks.grid().slab_at(block); }
};

}  // namespace

TEST(slab_is_entered_with_its_first_block_and_left_with_its_last) {
  Tenant tenant{1};
  CHECK(tenant.door.is(0, Word::kIdle));
  const std::vector<BlockId> ids = tenant.alloc(2);
  CHECK(tenant.door.is(0, Word::kBusy));
  tenant.free({ids[0]});
  CHECK(tenant.door.is(0, Word::kBusy));
  tenant.free({ids[1]});
  CHECK(tenant.door.is(0, Word::kIdle));
}

TEST(slab_is_left_once_when_its_blocks_come_back_in_several_runs) {
  Tenant tenant{2};
  const std::vector<BlockId> ids = tenant.alloc(2 * kBlocks);
  tenant.free({ids[0], ids[4], ids[1], ids[5], ids[2], ids[6], ids[3], ids[7]});
  CHECK(tenant.door.is(0, Word::kIdle));
  CHECK(tenant.door.is(1, Word::kIdle));
}

TEST(pin_holds_a_slab_until_the_last_of_pins_and_blocks_is_gone) {
  Tenant tenant{1};
  const std::vector<SlabId> slabs{0};
  const PinId pin = tenant.blocks.pin_slabs(slabs).take();
  CHECK(tenant.door.is(0, Word::kBusy));
  const std::vector<BlockId> ids = tenant.alloc(1);
  CHECK(tenant.blocks.unpin(pin).ok());
  CHECK(tenant.door.is(0, Word::kBusy));
  const PinId again = tenant.blocks.pin_blocks(ids).take();
  tenant.free(ids);
  CHECK(tenant.door.is(0, Word::kBusy));
  CHECK(tenant.blocks.unpin(again).ok());
  CHECK(tenant.door.is(0, Word::kIdle));
}

TEST(slab_that_left_unnoticed_is_forgotten_and_the_rest_serves) {
  Tenant tenant{2};
  tenant.door.revoke_silently(0);
  tenant.door.revoke_silently(1);
  tenant.admit(2);
  const std::vector<BlockId> ids = tenant.alloc(kBlocks);
  CHECK(std::ranges::all_of(ids, [&](BlockId id) { return tenant.slab_of(id) == 2; }));
  CHECK(!tenant.can_alloc(1));
  CHECK_EQ(tenant.blocks.capacity_blocks(), kBlocks);  // the two no longer count
}

TEST(allocation_stays_all_or_none_when_a_slab_leaves_under_it) {
  Tenant tenant{2};
  tenant.door.revoke_silently(0);
  CHECK(!tenant.can_alloc(kBlocks + 1));  // eight counted, four exist
  CHECK(tenant.door.is(1, Word::kIdle));  // the taken blocks are free again
  CHECK_EQ(tenant.blocks.used_blocks(), 0);
  CHECK_EQ(tenant.blocks.free_blocks(), kBlocks);
  CHECK(!tenant.blocks.reserve(kBlocks + 1).has_value());
  CHECK(tenant.can_alloc(kBlocks));
}

TEST(reservation_that_a_leaving_slab_makes_impossible_is_refused) {
  Tenant tenant{2};
  tenant.door.revoke_silently(1);
  CHECK(!tenant.blocks.reserve(kBlocks + 1).has_value());
  CHECK(tenant.door.is(0, Word::kIdle));
  const auto ticket = tenant.blocks.reserve(kBlocks);
  CHECK(ticket.has_value());
  CHECK(tenant.door.is(0, Word::kBusy));
  CHECK(tenant.blocks.cancel(*ticket).ok());
  CHECK(tenant.door.is(0, Word::kIdle));
}

TEST(closed_slab_gives_no_block_and_goes_home_with_its_last) {
  Tenant tenant{2};
  const std::vector<BlockId> ids = tenant.alloc(1);
  const SlabId slab = tenant.slab_of(ids[0]);
  tenant.door.revoke(slab);
  const std::vector<BlockId> others = tenant.alloc(kBlocks);
  CHECK(tenant.slab_of(others[0]) != slab);
  CHECK(!tenant.can_alloc(1));
  tenant.free(ids);
  CHECK(tenant.door.is(slab, Word::kAbsent));
  CHECK(tenant.blocks.free(ids).code() == Code::kInvalidArgument);  // stale from here on
  CHECK_EQ(tenant.blocks.capacity_blocks(), kBlocks);
}

TEST(closed_slab_with_nothing_but_a_ticket_goes_home_at_the_next_look) {
  Tenant tenant{1};
  const auto ticket = tenant.blocks.reserve(2);
  CHECK(tenant.door.is(0, Word::kBusy));
  tenant.door.revoke(0);
  CHECK(tenant.blocks.reconcile().ok());
  CHECK(tenant.door.is(0, Word::kAbsent));
  CHECK_EQ(tenant.blocks.capacity_blocks(), 0);
  CHECK(tenant.blocks.cancel(*ticket).ok());  // it is empty
}

TEST(cached_blocks_leave_with_their_slab_and_are_found_no_more) {
  Tenant tenant{1};
  const std::vector<BlockId> ids = tenant.alloc(2);
  const std::vector<BlockKey> keys{{1, 1}, {2, 2}};
  CHECK(tenant.blocks.publish(ids, keys).ok());
  tenant.free(ids);
  CHECK(tenant.door.is(0, Word::kIdle));  // they do not keep it
  std::vector<BlockId> found(2);
  CHECK_EQ(tenant.blocks.acquire({keys.data(), 1}, found), 1);
  CHECK(tenant.door.is(0, Word::kBusy));  // a block in use does
  tenant.free({found[0]});
  tenant.door.revoke_silently(0);
  CHECK_EQ(tenant.blocks.acquire(keys, found), 0);
  tenant.audit();
  CHECK_EQ(tenant.blocks.capacity_blocks(), 0);
}

TEST(share_of_a_cached_block_that_left_is_all_or_none) {
  Tenant tenant{2};
  const std::vector<BlockId> ids = tenant.alloc(kBlocks + 1);
  const std::vector<BlockKey> keys{{1, 1}};
  const std::vector<BlockId> last{ids.back()};
  CHECK(tenant.blocks.publish(last, keys).ok());
  tenant.free(last);
  tenant.door.revoke_silently(tenant.slab_of(ids.back()));
  const std::vector<BlockId> both{ids.front(), ids.back()};
  CHECK(tenant.blocks.share(both).code() == Code::kInvalidArgument);
  tenant.audit();
  CHECK_EQ(tenant.blocks.references(ids.front()).take(), 1);
}

TEST(pin_of_a_slab_that_left_is_refused_and_holds_nothing) {
  Tenant tenant{2};
  tenant.door.revoke_silently(1);
  const std::vector<SlabId> both{0, 1};
  CHECK(tenant.blocks.pin_slabs(both).status().code() == Code::kInvalidArgument);
  tenant.audit();
  CHECK(tenant.door.is(0, Word::kIdle));
}

TEST(unpin_of_an_earlier_life_leaves_the_new_one_alone) {
  Tenant tenant{1};
  const std::vector<SlabId> slabs{0};
  const PinId old = tenant.blocks.pin_slabs(slabs).take();
  tenant.door.words[0] = Word::kAbsent;  // the arbiter reset the word: it had a proof of completion
  {
    const std::lock_guard lock{tenant.books};
    static_cast<SlabHolder&>(tenant.blocks).remove_slab(0);
  }
  tenant.admit(0);
  CHECK(tenant.blocks.unpin(old).ok());
  tenant.audit();
  CHECK(tenant.door.is(0, Word::kIdle));
}

TEST(admission_is_idempotent_and_never_forgets_blocks_in_use) {
  Tenant tenant{1};
  const std::vector<BlockId> ids = tenant.alloc(1);
  CHECK(tenant.blocks.admit_slab(0, 1).ok());  // a repeated answer
  CHECK_EQ(tenant.blocks.used_blocks(), 1);
  CHECK(tenant.blocks.admit_slab(0, 2).code() == Code::kInvalidArgument);
  CHECK(tenant.blocks.admit_slab(kSlabs, 1).code() == Code::kInvalidArgument);
  CHECK(tenant.blocks.admit_slab(-1, 1).code() == Code::kInvalidArgument);
  tenant.free(ids);
  tenant.door.revoke_silently(0);
  tenant.admit(0);  // it was taken away and granted again before the look
  CHECK_EQ(tenant.blocks.generation(0).take(), 2);
  CHECK_EQ(tenant.blocks.capacity_blocks(), kBlocks);
}

TEST(random_calls_against_a_busy_arbiter_keep_words_and_books_in_step) {
  std::mt19937 random{11};
  Tenant tenant;
  std::vector<BlockId> held;
  std::vector<PinId> pins;
  for (int round = 0; round < 20'000; ++round) {
    const auto slab = static_cast<SlabId>(random() % kSlabs);
    switch (random() % 6) {
      case 0:
        random() % 2 == 0 ? tenant.door.revoke(slab) : tenant.door.revoke_silently(slab);
        break;
      case 1:
        if (tenant.door.is(slab, Word::kAbsent)) tenant.admit(slab);
        break;
      case 2: {
        std::vector<BlockId> ids(random() % 6);
        if (tenant.blocks.alloc(ids)) held.insert(held.end(), ids.begin(), ids.end());
        break;
      }
      case 3: {
        std::ranges::shuffle(held, random);
        const std::size_t n = std::min<std::size_t>(held.size(), random() % 6);
        CHECK(tenant.blocks.free({held.data(), n}).ok());
        held.erase(held.begin(), held.begin() + static_cast<std::ptrdiff_t>(n));
        break;
      }
      case 4: {
        rose::Result<PinId> pin = tenant.blocks.pin_slabs({&slab, 1});
        if (pin.ok()) pins.push_back(pin.take());
        break;
      }
      default:
        if (pins.empty()) break;
        CHECK(tenant.blocks.unpin(pins.back()).ok());
        pins.pop_back();
    }
    tenant.audit();
    CHECK_EQ(tenant.blocks.used_blocks(), held.size());
    for (const BlockId block : held) {
      const SlabId used = tenant.slab_of(block);
      CHECK(tenant.door.is(used, Word::kBusy) || tenant.door.is(used, Word::kClosed));
    }
  }
  CHECK(tenant.blocks.free(held).ok());
  for (const PinId pin : pins) CHECK(tenant.blocks.unpin(pin).ok());
  CHECK(tenant.blocks.reconcile().ok());
  for (SlabId slab = 0; slab < kSlabs; ++slab) {
    CHECK(tenant.door.is(slab, Word::kIdle) || tenant.door.is(slab, Word::kAbsent));
  }
}
