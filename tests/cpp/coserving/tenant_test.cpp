#include "coserving/tenant.h"

#include <thread>

#include "check.h"
#include "memory/host_memfd.h"
#include "memory/idle_process.h"

using namespace rose;
using namespace rose::coserving;
using namespace rose::memory;
using namespace rose::test;

namespace {

constexpr Nanoseconds kMinute = 60'000'000'000;

struct Tenancy {
  IdleProcess process;
  std::shared_ptr<Arbiter> arbiter =
      Arbiter::create(Pool::create(std::make_unique<HostMemfd>(), {4096, 4, 2}).take(),
                      std::make_shared<BootClock>(), nullptr)
          .take();
  PartitionId partition = arbiter->add_partition("rollout", 0, 4).take();
  std::unique_ptr<Tenant> tenant = make();

  std::unique_ptr<Tenant> make() {
    return Tenant::create(arbiter, partition, Process::open(process.pid).take(), Notify::kAtGrant,
                          true)
        .take();
  }
};

}  // namespace

TEST(evicted_tenant_is_killed_by_its_watch) {
  Tenancy one;
  CHECK(one.tenant->is_alive());
  one.tenant->evict();
  CHECK(one.tenant->watch()->wait_lost(kMinute));
  CHECK(one.tenant->watch()->was_killed());
  CHECK(!one.tenant->is_alive());
}

TEST(closed_tenant_counts_as_gone_and_its_process_lives) {
  Tenancy one;
  one.tenant->close();
  CHECK(one.tenant->watch() == nullptr);
  CHECK(!one.tenant->is_alive());
  CHECK_EQ(one.tenant->report().heartbeat_ns, 0);
  one.tenant->ring();
  one.tenant->evict();
  one.tenant->close();
  CHECK(Process::open(one.process.pid).take().is_alive());
}

TEST(close_ends_no_wait_of_another_thread) {
  Tenancy one;
  const auto watch = one.tenant->watch();
  std::thread waiter{[&] { CHECK(watch->wait_lost(kMinute)); }};
  one.tenant->evict();
  one.tenant->close();
  waiter.join();
}

TEST(partition_of_a_tenant_takes_no_second_one) {
  Tenancy one;
  const auto second = Tenant::create(one.arbiter, one.partition,
                                     Process::open(one.process.pid).take(), Notify::kAtGrant, true);
  CHECK_EQ(second.status().code(), Code::kInvalidArgument);
}
