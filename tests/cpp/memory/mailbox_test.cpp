// The words between an arbiter and a tenant: the table of moves, and both sides at once.
#include "memory/mailbox.h"

#include <unistd.h>

#include <atomic>
#include <thread>

#include "check.h"

using namespace rose;
using namespace rose::memory;

namespace {

constexpr PoolShape kShape{4096, 3, 1};
constexpr std::uint32_t kGeneration = 7;

Mailbox fresh() { return Mailbox::create(kShape, 1, 99).take(); }

Mailbox other_end(const Mailbox& mailbox) {
  return Mailbox::open(FileDescriptor{::dup(mailbox.fd())}, kShape).take();
}

WordUse use_of(const Mailbox& mailbox) { return mailbox.word(0).use; }

}  // namespace

TEST(idle_slab_is_taken_without_asking) {
  const Mailbox arbiter = fresh();
  const Mailbox tenant = other_end(arbiter);
  CHECK(use_of(tenant) == WordUse::kAbsent);
  arbiter.grant(0, kGeneration);
  CHECK(use_of(tenant) == WordUse::kIdle);
  CHECK(arbiter.take_idle(0, kGeneration));
  CHECK(!tenant.enter(0, kGeneration));
}

TEST(busy_slab_is_closed_and_goes_home_when_it_is_left) {
  const Mailbox arbiter = fresh();
  const Mailbox tenant = other_end(arbiter);
  arbiter.grant(0, kGeneration);
  CHECK(tenant.enter(0, kGeneration));
  CHECK(!arbiter.take_idle(0, kGeneration));
  arbiter.close(0, kGeneration);
  CHECK(use_of(arbiter) == WordUse::kClosed);
  CHECK(tenant.leave(0, kGeneration) == Leaving::kHome);
  CHECK(use_of(arbiter) == WordUse::kAbsent);
  CHECK(tenant.leave(0, kGeneration) == Leaving::kWasTaken);  // again: nothing happens
}

TEST(left_slab_stays_the_tenants) {
  const Mailbox arbiter = fresh();
  arbiter.grant(0, kGeneration);
  CHECK(arbiter.enter(0, kGeneration));
  CHECK(arbiter.leave(0, kGeneration) == Leaving::kStays);
  CHECK(arbiter.give(0, kGeneration));
  CHECK(!arbiter.give(0, kGeneration));
}

TEST(other_generation_moves_nothing) {
  const Mailbox mailbox = fresh();
  mailbox.grant(0, kGeneration);
  for (const std::uint32_t stale : {kGeneration - 1, kGeneration + 1}) {
    CHECK(!mailbox.enter(0, stale));
    CHECK(!mailbox.take_idle(0, stale));
    CHECK(!mailbox.give(0, stale));
    mailbox.close(0, stale);
    CHECK(mailbox.leave(0, stale) == Leaving::kWasTaken);
    CHECK((mailbox.word(0) == SlabWord{kGeneration, WordUse::kIdle}));
  }
}

TEST(foreign_mailbox_is_refused) {
  const Mailbox mailbox = fresh();
  const FileDescriptor fd{::dup(mailbox.fd())};
  CHECK(Mailbox::open(fd, {4096, 4, 1}).status().code() == Code::kCorrupt);
  CHECK(Mailbox::open(fd, {8192, 3, 1}).status().code() == Code::kCorrupt);
  CHECK(Mailbox::open(fd, {4096, 3, 2}).status().code() == Code::kCorrupt);
  const FileDescriptor zeros = create_memfd("test", 128 + 3 * 16).take();
  CHECK(Mailbox::open(zeros, kShape).status().code() == Code::kCorrupt);
  CHECK(Mailbox::open(FileDescriptor{}, kShape).status().code() != Code::kOk);
}

// The tenant enters and leaves as fast as it can, and marks the slab while it is inside. The
// arbiter takes it back and grants it again. Neither may ever find the other's mark.
TEST(slab_never_has_two_users) {
  // One mapping for both: ThreadSanitizer knows a word by its address.
  const Mailbox arbiter = fresh();
  const Mailbox& tenant = arbiter;
  std::atomic<std::uint32_t> generation{1};
  std::atomic<bool> is_done{false};
  int user = 0;  // plain on purpose: ThreadSanitizer detects whether the words order its uses
  arbiter.grant(0, 1);
  std::thread other{[&] {
    while (!is_done.load()) {
      const std::uint32_t now = generation.load();
      if (!tenant.enter(0, now)) {
        std::this_thread::yield();
        continue;
      }
      CHECK_EQ(user, 0);
      user = 2;
      user = 0;
      static_cast<void>(tenant.leave(0, now));
    }
  }};
  for (std::uint32_t now = 1; now <= 2000; ++now) {
    arbiter.close(0, now);
    while (arbiter.word(0).use != WordUse::kAbsent) std::this_thread::yield();
    CHECK_EQ(user, 0);
    user = 1;
    user = 0;
    arbiter.grant(0, now + 1);
    generation.store(now + 1);
  }
  is_done.store(true);
  other.join();
}
