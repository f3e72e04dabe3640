// Two threads as two processes: an engine at work, and an arbiter that lends and takes back.
#include "memory/attachment.h"

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "check.h"
#include "two_parties.h"

using namespace rose;
using namespace rose::memory;
using namespace rose::test;

TEST(granted_slabs_are_admitted_once) {
  TwoParties all;
  CHECK(all.grant(2));
  CHECK_EQ(all.tenant->look().take().admitted, 2);
  CHECK_EQ(all.tenant->look().take().admitted, 0);
  CHECK_EQ(all.blocks->free_blocks(), 8);
}

TEST(closed_slabs_are_told_until_they_are_left) {
  TwoParties all;
  CHECK(all.grant(2));
  CHECK(all.tenant->look().ok());
  CHECK(all.alloc(5));
  all.revoke(2, all.serving);
  CHECK_EQ(all.tenant->news(kSecond).take().closed.size(), 2);
  const std::optional<RevocationNote> note = all.tenant->revocation().take();
  CHECK(note.has_value());
  CHECK_EQ(note->pending, 2);
  all.free_all();
  const TenantNews after = all.tenant->look().take();
  CHECK_EQ(after.closed.size(), 0);
  CHECK_EQ(after.taken, 2);
  CHECK_EQ(all.arbiter->poll(all.revocation).take().returned, 2);  // found without a ring
}

TEST(closed_attachment_enters_nothing) {
  TwoParties all;
  CHECK(all.grant(2));
  CHECK(all.tenant->look().ok());
  CHECK(all.tenant->close().ok());
  CHECK(!all.alloc(1));
  CHECK_EQ(all.arbiter->sweep(all.rollout).take(), 2);
  CHECK(all.arbiter->check_invariants().ok());
}

TEST(books_balance_while_both_sides_are_at_work) {
  TwoParties all;
  std::atomic<bool> is_done{false};
  std::thread engine{[&] {
    while (!is_done.load()) {
      CHECK(all.tenant->look().ok());
      std::vector<BlockId> ids(3);
      if (!all.blocks->alloc(ids)) {
        std::this_thread::yield();
        continue;
      }
      const Result<PinId> pin = all.blocks->pin_blocks(ids);
      CHECK(pin.ok());
      all.tenant->beat(1);
      CHECK(all.blocks->free(ids).ok());
      CHECK(all.blocks->unpin(pin.value()).ok());
    }
  }};
  for (int round = 0; round < 300; ++round) {
    CHECK(all.grant(2));
    std::this_thread::yield();
    all.revoke(2, all.serving);
    while (all.arbiter->poll(all.revocation).take().pending > 0) std::this_thread::yield();
    CHECK(all.arbiter->check_invariants().ok());
    CHECK(all.arbiter->give_back(all.serving, 4).ok());
  }
  is_done.store(true);
  engine.join();
  CHECK(all.arbiter->check_invariants().ok());
}
