// Prints the median nanoseconds of one placement by the scheduler's core: WORKERS ROUNDS.
//
// Each round asks for a place for a turn with a home and a warm cache, and takes what it gets, so
// that the next round finds other columns. Nothing but the choice is in the measured part.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "scheduler/placement.h"

namespace {

using namespace rose::scheduler;

constexpr std::int64_t kNeed = 1000;

// Eight workers fail together; all have the same job, and something is exposed everywhere.
WorkerTable table_of(std::int64_t workers, ExposureTable& exposures, std::mt19937_64& random) {
  WorkerTable table{1.0 / 60};
  for (WorkerId number = 0; number < workers; ++number) {
    const auto kind = number % 3 == 0 ? WorkerKind::kDedicated : WorkerKind::kBorrowed;
    const double speed = 1 + static_cast<double>(random() % 4);
    const std::size_t domain = exposures.place_of(number / 8);
    table.join({number, kind, 1 << 20, 4000 * speed, 20 / speed, 0.5, 0}, 0, domain);
    exposures.add(0, domain, {.tokens = 1000, .prefill_tokens_per_s = 4000});
    table.set_grant(*table.find(number), {number, 1, kCountMax, 0}, 1);
  }
  return table;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::int64_t workers = std::atoll(argv[1]);
  const std::int64_t rounds = std::atoll(argv[2]);
  std::mt19937_64 random{7};
  Settings settings;
  settings.exposure_max_s = 30;
  settings.requeue_s = 0.1;
  settings.turn_tokens_prior = 128;
  ExposureTable exposures{settings};
  WorkerTable table = table_of(workers, exposures, random);
  Placement placement{settings, PlacementPolicy::kJoint};
  std::vector<std::int64_t> samples;
  for (std::int64_t round = 0; round < rounds; ++round) {
    Query query;
    query.need_tokens = kNeed;
    query.prompt_tokens = static_cast<double>(random() % 900);
    query.expected_tokens = 128;
    query.urgency = static_cast<double>(random() % 100) / 100;
    query.home = random() % static_cast<std::uint64_t>(workers);
    query.hit_tokens = query.prompt_tokens / 2;
    query.restart_tokens = round % 2 == 0 ? query.prompt_tokens : 0;
    query.burst_tokens = 32'768;
    query.is_urgent = query.urgency > 0.5;
    query.exposures = &exposures;
    query.spares_caches = true;
    query.resident_tokens = 2 * query.prompt_tokens;
    const auto began = std::chrono::steady_clock::now();
    const auto slot = placement.choose(table, query);
    samples.push_back((std::chrono::steady_clock::now() - began).count());
    if (!slot) return 1;
    table.hold(*slot, round, kNeed, 0);
  }
  std::nth_element(samples.begin(), samples.begin() + rounds / 2, samples.end());
  std::printf("%lld\n", static_cast<long long>(samples[static_cast<std::size_t>(rounds / 2)]));
}
