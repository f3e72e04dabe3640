#include "scheduler/fairness.h"

#include <cstddef>
#include <random>
#include <vector>

#include "check.h"

using namespace rose;
using namespace rose::scheduler;

namespace {

constexpr std::size_t kJobs = 3;

TEST(at_least_one_backlogged_job_may_start) {
  std::mt19937_64 random{1};
  FairDevice device;
  device.set_backlogged({{0, true}, {1, true}, {2, true}});
  for (int round = 0; round < 1000; ++round) {
    std::vector<std::size_t> free;
    for (std::size_t job = 0; job < kJobs; ++job) {
      if (!device.is_barred(job, 0)) free.push_back(job);
    }
    CHECK(!free.empty());
    device.serve(free[random() % free.size()], 1 + static_cast<double>(random() % 50));
  }
}

TEST(a_job_without_workers_here_bars_no_other_job) {
  FairDevice device;
  device.set_backlogged({{0, true}, {1, true}});
  device.serve(0, 100);
  CHECK(device.is_barred(0, 10));
  device.set_backlogged({{0, true}});
  CHECK(!device.is_barred(0, 10));
}

TEST(an_idle_job_earns_no_credit) {
  FairDevice device;
  device.set_backlogged({{0, true}, {1, false}});
  for (int round = 0; round < 100; ++round) device.serve(0, 10);
  device.set_backlogged({{0, true}, {1, true}});
  CHECK(!device.is_barred(1, 0));
  device.serve(1, 20);
  CHECK(device.is_barred(1, 0));  // and not 100 turns later
}

}  // namespace
