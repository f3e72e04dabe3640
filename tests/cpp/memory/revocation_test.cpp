// Two threads: an engine that uses and frees blocks, and serving that revokes and waits.
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"
#include "memory/arbiter.h"
#include "memory/host_memfd.h"

using rose::BootClock;
using rose::Nanoseconds;
using rose::memory::Arbiter;
using rose::memory::BlockAllocator;
using rose::memory::BlockId;
using rose::memory::Grant;
using rose::memory::GrantAnswer;
using rose::memory::HostMemfd;
using rose::memory::LedgerView;
using rose::memory::PartitionId;
using rose::memory::PinId;
using rose::memory::Pool;
using rose::memory::RevocationId;
using rose::memory::RevocationProgress;

namespace {

constexpr std::size_t kSlab = 4096;
constexpr Nanoseconds kSecond = 1'000'000'000;

struct Device {
  std::shared_ptr<const BootClock> clock = std::make_shared<BootClock>();
  std::unique_ptr<Arbiter> arbiter =
      Arbiter::create(Pool::create(std::make_unique<HostMemfd>(), {kSlab, 8, 2}).take(), clock,
                      nullptr)
          .take();
  PartitionId serving = arbiter->add_partition("serving", 2, 8).take();
  PartitionId rollout = arbiter->add_partition("rollout", 0, 6).take();
  BlockAllocator* blocks = arbiter->add_allocator(rollout, {kSlab / 4, kSlab, 0}).take();

  Grant grant(std::int32_t n) { return arbiter->grant(rollout, n, 60 * kSecond).take().grant; }
  RevocationId revoke(std::int32_t n, Nanoseconds within_ns) {
    return arbiter->revoke(rollout, n, clock->now_ns() + within_ns, serving).take();
  }
};

}  // namespace

TEST(free_in_one_thread_ends_the_wait_in_the_other) {
  Device device;
  device.grant(2);
  std::vector<BlockId> ids(8);
  CHECK(device.blocks->alloc(ids));
  const PinId pin = device.blocks->pin_blocks(std::span{ids}.first(1)).take();
  const RevocationId id = device.revoke(2, 60 * kSecond);
  std::thread engine{[&] {
    CHECK(device.blocks->free(ids).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds{2});
    CHECK(device.blocks->unpin(pin).ok());
  }};
  const RevocationProgress progress = device.arbiter->wait(id, 60 * kSecond).take();
  engine.join();
  CHECK_EQ(progress.returned, 2);
  CHECK_EQ(progress.pending, 0);
  CHECK(device.arbiter->check_invariants().ok());
}

TEST(wait_ends_at_the_timeout) {
  Device device;
  device.grant(1);
  std::vector<BlockId> ids(1);
  CHECK(device.blocks->alloc(ids));
  const RevocationId id = device.revoke(1, 60 * kSecond);
  CHECK_EQ(device.arbiter->wait(id, kSecond / 500).take().pending, 1);
  CHECK_EQ(device.arbiter->wait(id, -1).take().pending, 1);
}

TEST(wait_fences_at_the_deadline) {
  Device device;
  device.grant(1);
  std::vector<BlockId> ids(1);
  CHECK(device.blocks->alloc(ids));
  const RevocationId id = device.revoke(1, kSecond / 500);
  CHECK_EQ(device.arbiter->wait(id, INT64_MAX).take().fenced, 1);
  CHECK_EQ(device.arbiter->snapshot().quarantined, 1);
}

// A keeper listens repeatedly, so a long gap means that the process was stopped.
TEST(time_in_which_the_process_stood_still_is_not_counted) {
  constexpr Nanoseconds kWithin = kSecond / 10;
  const auto stop = [] { std::this_thread::sleep_for(std::chrono::milliseconds{400}); };
  for (const bool is_listened_to : {true, false}) {
    Device device;
    std::vector<BlockId> ids(8);
    std::vector<BlockId> others(4);
    device.grant(2);
    CHECK(device.blocks->alloc(ids));
    CHECK(!device.arbiter->grant(device.rollout, 1, 2 * kWithin).take().refusal.has_value());
    CHECK(device.blocks->alloc(others));
    device.arbiter->listen(0, is_listened_to ? 1 : 0);
    const RevocationId id = device.revoke(2, kWithin);
    stop();
    const RevocationProgress progress = device.arbiter->poll(id).take();
    CHECK_EQ(progress.fenced, is_listened_to ? 0 : 2);
    CHECK_EQ(progress.pending, is_listened_to ? 2 : 0);
    CHECK_EQ(device.arbiter->expire(0).take().size(), is_listened_to ? 0u : 1u);
    if (!is_listened_to) continue;
    // The rest of both deadlines remains, and passes while somebody looks.
    CHECK(device.blocks->free(std::span{ids}.first(4)).ok());
    CHECK_EQ(device.arbiter->wait(id, kSecond).take().returned, 1);
    CHECK_EQ(device.arbiter->poll(id).take().fenced, 1);
    std::size_t expired = 0;
    while (expired == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
      expired = device.arbiter->expire(0).take().size();
    }
    CHECK_EQ(expired, 1u);
    CHECK(device.arbiter->check_invariants().ok());
  }
}

TEST(who_waits_shows_that_the_process_runs) {
  Device device;
  device.grant(1);
  std::vector<BlockId> ids(1);
  CHECK(device.blocks->alloc(ids));
  device.arbiter->listen(0, 1);  // The keeper does not return: another thread has its interpreter.
  const RevocationId id = device.revoke(1, kSecond / 2);
  const Nanoseconds from_ns = device.clock->now_ns();
  CHECK_EQ(device.arbiter->wait(id, 60 * kSecond).take().fenced, 1);
  CHECK(device.clock->now_ns() - from_ns < 20 * kSecond);
}

TEST(the_end_of_time_stays_where_it_is) {
  Device device;
  device.grant(1);
  std::vector<BlockId> ids(1);
  CHECK(device.blocks->alloc(ids));
  const RevocationId id =
      device.arbiter->revoke(device.rollout, 1, INT64_MAX, device.serving).take();
  device.arbiter->listen(0, 1);
  std::this_thread::sleep_for(std::chrono::milliseconds{150});
  CHECK_EQ(device.arbiter->poll(id).take().pending, 1);
}

// The engine allocates, pins, frees and unpins; serving grants, revokes, waits and gives back; a
// third thread reads the ledger and the numbers. The books must balance at every look.
TEST(books_balance_under_three_threads) {
  Device device;
  constexpr int kRounds = 300;
  std::atomic<bool> is_done{false};
  std::thread engine{[&] {
    while (!is_done.load()) {
      std::vector<BlockId> ids(3);
      if (!device.blocks->alloc(ids)) {
        std::this_thread::yield();
        continue;
      }
      const PinId pin = device.blocks->pin_blocks(ids).take();
      CHECK(device.blocks->free(ids).ok());
      const auto ticket = device.blocks->reserve(2);
      CHECK(device.blocks->unpin(pin).ok());
      if (ticket.has_value()) CHECK(device.blocks->cancel(*ticket).ok());
    }
  }};
  std::thread reader{[&] {
    const LedgerView view = LedgerView::open(device.arbiter->share_ledger().take()).take();
    while (!is_done.load()) {
      const rose::Status status = view.audit();
      CHECK(status.ok() || status.code() == rose::Code::kUnavailable);
      CHECK(device.arbiter->check_invariants().ok());
      std::this_thread::yield();
    }
  }};
  for (int round = 0; round < kRounds; ++round) {
    const GrantAnswer answer = device.arbiter->grant(device.rollout, 3, 60 * kSecond).take();
    CHECK(!answer.refusal.has_value());  // only this thread moves slabs to the borrower
    std::this_thread::yield();
    const RevocationId id = device.revoke(3, 60 * kSecond);
    CHECK_EQ(device.arbiter->wait(id, 60 * kSecond).take().returned, 3);
    CHECK_EQ(device.arbiter->give_back(device.serving, 3).take(), round == 0 ? 1 : 3);
  }
  is_done.store(true);
  engine.join();
  reader.join();
  CHECK(device.arbiter->check_invariants().ok());
}
