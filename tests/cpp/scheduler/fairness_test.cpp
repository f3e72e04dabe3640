#include "scheduler/fairness.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "check.h"

using namespace rose;
using namespace rose::scheduler;

namespace {

constexpr std::size_t kJobs = 3;
constexpr double kNeedMax = 100;

// The range of the lead of one job over the other while both are backlogged.
struct Spread {
  double low{0};
  double high{0};
  double now{0};

  void add(double by) {
    now += by;
    low = std::min(low, now);
    high = std::max(high, now);
  }
};

TEST(weighted_service_of_backlogged_jobs_differs_by_the_bound_at_most) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random{seed};
    const auto below = [&](std::uint64_t n) { return random() % n; };
    const double lead = static_cast<double>(below(3) * 70);
    std::vector<double> weights;
    for (std::size_t job = 0; job < kJobs; ++job) {
      weights.push_back(static_cast<double>(1 + below(8)) / 2);
    }
    FairDevice device;
    std::map<std::size_t, bool> backlogged;
    for (std::size_t job = 0; job < kJobs; ++job) backlogged[job] = below(2) == 0;
    std::map<std::pair<std::size_t, std::size_t>, Spread> spreads;
    for (int round = 0; round < 3000; ++round) {
      if (below(20) == 0) {
        const std::size_t job = below(kJobs);
        backlogged[job] = !backlogged[job];
      }
      device.set_backlogged(backlogged);
      // An adversary picks among the jobs that may start.
      const std::size_t job = below(kJobs);
      if (!backlogged[job] || device.is_barred(job, lead)) continue;
      const double served = (1 + static_cast<double>(below(100))) / weights[job];
      device.serve(job, served);
      for (std::size_t other = 0; other < kJobs; ++other) {
        if (other == job) continue;
        Spread& spread = spreads[{std::min(job, other), std::max(job, other)}];
        if (!backlogged[other]) {
          spread = {};
          continue;
        }
        spread.add(job < other ? served : -served);
        const double bound = 2 * lead + kNeedMax / weights[job] + kNeedMax / weights[other];
        CHECK(spread.high - spread.low <= bound + 1e-6);
      }
      for (auto& [pair, spread] : spreads) {
        if (!backlogged[pair.first] || !backlogged[pair.second]) spread = {};
      }
    }
  }
}

TEST(somebody_may_always_start) {
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

TEST(a_job_whose_workers_here_are_gone_bars_nobody) {
  FairDevice device;
  device.set_backlogged({{0, true}, {1, true}});
  device.serve(0, 100);
  CHECK(device.is_barred(0, 10));
  device.set_backlogged({{0, true}});
  CHECK(!device.is_barred(0, 10));
}

TEST(idleness_earns_nothing) {
  FairDevice device;
  device.set_backlogged({{0, true}, {1, false}});
  for (int round = 0; round < 100; ++round) device.serve(0, 10);
  device.set_backlogged({{0, true}, {1, true}});
  CHECK(!device.is_barred(1, 0));
  device.serve(1, 20);
  CHECK(device.is_barred(1, 0));  // and not 100 turns later
}

}  // namespace
