// The watch of a tenant in a real process: rings, deadlines and deaths.
#include "memory/tenant_watch.h"

#include <csignal>
#include <thread>

#include "check.h"
#include "idle_process.h"
#include "two_parties.h"

using namespace rose;
using namespace rose::memory;
using namespace rose::test;

namespace {

struct Watched {
  TwoParties all;
  IdleProcess child;
  std::unique_ptr<TenantWatch> watch;

  explicit Watched(bool kills_late)
      : watch{TenantWatch::create(all.arbiter, all.rollout, Process::open(child.pid).take(),
                                  kills_late)
                  .take()} {
    CHECK(all.grant(3));
    CHECK(all.tenant->look().ok());
    CHECK(all.alloc(5));
  }
  std::size_t serving_can_have() {
    CHECK(all.arbiter->check_invariants().ok());
    return all.arbiter->take(all.serving, 4).take().size();
  }
};

}  // namespace

TEST(ring_brings_a_left_slab_home) {
  Watched one{true};
  one.all.revoke(3, kNobody);
  one.all.free_all();
  // A snapshot does not read the words: only the watch can have returned the slabs.
  const Nanoseconds end_ns = BootClock{}.now_ns() + 60 * kSecond;
  while (one.all.arbiter->snapshot().unowned < 4) {
    CHECK(BootClock{}.now_ns() < end_ns);
    std::this_thread::yield();
  }
}

TEST(death_brings_everything_home) {
  Watched one{true};
  ::kill(one.child.pid, SIGKILL);
  CHECK(one.watch->wait_lost(60 * kSecond));
  CHECK(!one.watch->was_killed());
  CHECK(one.watch->failure().ok());
  CHECK_EQ(one.serving_can_have(), 4);
}

TEST(late_tenant_is_killed) {
  Watched one{true};
  one.all.revoke(3, one.all.serving);
  one.all.clock->advance(2 * kSecond);
  CHECK_EQ(one.all.arbiter->poll(one.all.revocation).take().fenced, 2);
  CHECK(one.watch->wait_lost(60 * kSecond));
  CHECK(one.watch->was_killed());
  CHECK(!one.watch->process().is_alive());
  CHECK_EQ(one.serving_can_have(), 3);  // one returned at once
}

TEST(late_tenant_may_live_where_that_is_wanted) {
  Watched one{false};
  one.all.revoke(3, one.all.serving);
  one.all.clock->advance(2 * kSecond);
  CHECK_EQ(one.all.arbiter->poll(one.all.revocation).take().fenced, 2);
  CHECK(!one.watch->wait_lost(20'000'000));
  CHECK(one.watch->process().is_alive());
  CHECK_EQ(one.all.arbiter->snapshot().quarantined, 2);
}

TEST(watch_ends_while_the_tenant_lives) {
  Watched one{true};
  one.watch.reset();
  CHECK_EQ(::kill(one.child.pid, 0), 0);
}
