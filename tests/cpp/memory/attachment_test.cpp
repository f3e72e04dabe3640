// Two threads as two processes: an engine at work, and an arbiter that lends and takes back.
#include "memory/attachment.h"

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>
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

namespace {

void balance_books_at_work(TwoParties& all) {
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

}  // namespace

TEST(books_balance_while_both_sides_are_at_work) {
  TwoParties all;
  balance_books_at_work(all);
}

TEST(books_balance_while_both_sides_are_at_work_in_the_arbiters_process) {
  TwoParties all{.is_here = true};
  balance_books_at_work(all);
}

TEST(in_the_arbiters_process_a_slab_is_back_when_its_last_block_is_freed) {
  TwoParties all{.is_here = true};
  CHECK(all.grant(2));
  CHECK_EQ(all.tenant->look().take().admitted, 2);
  CHECK(all.alloc(5));
  all.revoke(2, all.serving);
  all.free_all();
  const auto partitions = all.arbiter->snapshot().partitions;
  CHECK_EQ(partitions[static_cast<std::size_t>(all.rollout)].partition.held, 0);
  CHECK_EQ(partitions[static_cast<std::size_t>(all.serving)].partition.held, 2);
}

namespace {

// Waits until the arbiter has the slabs back, or for at most ten seconds.
bool are_back(const TwoParties& all, std::int32_t slabs) {
  const BootClock real;
  for (const Nanoseconds end_ns = real.now_ns() + 10 * kSecond; real.now_ns() < end_ns;) {
    CHECK(all.arbiter->sweep(all.rollout).ok());
    if (all.arbiter->poll(all.revocation).take().returned == slabs) return true;
    std::this_thread::yield();
  }
  return false;
}

}  // namespace

TEST(in_the_arbiters_process_the_thread_returns_what_the_engine_keeps_after_wake) {
  TwoParties all{.is_here = true};
  CHECK(all.tenant->attend(kSecond).ok());
  CHECK(all.grant(2));
  CHECK_EQ(all.tenant->look().take().admitted, 2);
  CHECK(all.alloc(5));
  all.revoke(2, all.serving);
  all.tenant->wake();
  CHECK(are_back(all, 2));
}

TEST(in_the_arbiters_process_the_thread_returns_closed_slabs_after_their_last_pin) {
  TwoParties all{.is_here = true};
  CHECK(all.tenant->attend(60 * kSecond).ok());
  CHECK(all.grant(2));
  CHECK_EQ(all.tenant->look().take().admitted, 2);
  CHECK(all.alloc(5));
  const PinId pin = all.blocks->pin_blocks(all.held).take();
  all.revoke(2, all.serving);
  all.tenant->wake();
  CHECK(all.blocks->unpin(pin).ok());
  CHECK(are_back(all, 2));
}

TEST(attended_tenant_reports_while_its_engine_does_nothing) {
  TwoParties all;
  CHECK(all.tenant->attend(1'000'000).ok());
  for (Nanoseconds seen_ns = 0, reports = 0; reports < 3;) {
    const Nanoseconds now_ns = all.line->mailbox.report().heartbeat_ns;
    if (now_ns != std::exchange(seen_ns, now_ns)) ++reports;
    std::this_thread::yield();
  }
  CHECK(all.tenant->close().ok());
  const Nanoseconds last_ns = all.line->mailbox.report().heartbeat_ns;
  std::this_thread::sleep_for(std::chrono::milliseconds{20});
  CHECK_EQ(all.line->mailbox.report().heartbeat_ns, last_ns);
}

TEST(closed_slab_leaves_without_the_engine_once_no_pin_holds_it) {
  TwoParties all;
  CHECK(all.grant(2));
  CHECK(all.tenant->attend(kSecond).ok());
  CHECK(all.tenant->look().ok());
  CHECK(all.alloc(8));
  const std::vector<BlockId> pinned(all.held.begin(), all.held.begin() + 1);
  const PinId pin = all.blocks->pin_blocks(pinned).take();
  all.revoke(2, all.serving);
  CHECK(are_back(all, 1));
  CHECK(all.blocks->unpin(pin).ok());
  CHECK(are_back(all, 2));
  CHECK(all.arbiter->check_invariants().ok());
  // The engine finds the slabs at its next look. Their blocks can be freed, but not used.
  CHECK_EQ(all.tenant->leaving().take().size(), 2);
  CHECK_EQ(all.blocks->free_blocks(), 0);
  CHECK_EQ(static_cast<int>(all.blocks->pin_blocks(pinned).status().code()),
           static_cast<int>(Code::kUnavailable));
  // A new loan of three of the four slabs has one of them, which waits until the engine has freed
  // the lost blocks.
  CHECK(all.arbiter->give_back(all.serving, 4).ok());
  CHECK(all.grant(3));
  CHECK(all.tenant->look().take().admitted < 3);
  all.free_all();
  CHECK(all.tenant->look().ok());
  CHECK_EQ(all.blocks->free_blocks(), 12);
  CHECK_EQ(all.tenant->leaving().take().size(), 0);
  CHECK(all.alloc(12));
  all.free_all();
}

TEST(held_slabs_are_not_given_up) {
  TwoParties all;
  CHECK(all.grant(2));
  CHECK(all.tenant->attend(1'000'000).ok());
  CHECK(all.tenant->look().ok());
  CHECK(all.alloc(8));
  all.tenant->hold();
  all.revoke(2, all.serving);
  std::this_thread::sleep_for(std::chrono::milliseconds{50});
  CHECK_EQ(all.arbiter->sweep(all.rollout).take(), 0);
  const PinId pin = all.blocks->pin_blocks(all.held).take();
  all.tenant->release();
  std::this_thread::sleep_for(std::chrono::milliseconds{50});
  CHECK_EQ(all.arbiter->sweep(all.rollout).take(), 0);
  CHECK(all.blocks->unpin(pin).ok());
  CHECK(are_back(all, 2));
  all.free_all();
}

TEST(bell_reaches_the_engine_of_an_attended_tenant) {
  TwoParties all;
  CHECK(all.tenant->attend(kSecond).ok());
  CHECK(all.grant(1));
  CHECK(all.tenant->news(10 * kSecond).take().was_rung);
  CHECK(!all.tenant->news(0).take().was_rung);
}
