// Prints the median milliseconds of a step in which REVOKED of WORKERS leases are taken back at
// once, each with TURNS turns, and how many of these turns were started elsewhere in that step:
// WORKERS REVOKED TURNS ROUNDS MIXED.
//
// All turns are alike, or with MIXED 1 no two of a few hundred are: prompts and limits differ, so
// nothing that is known of one choice helps the next.
// Every round has a core of its own. Nothing but the step is in the measured part.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "scheduler/core.h"

namespace {

using namespace rose;
using namespace rose::scheduler;

constexpr std::int64_t kContext = 800;
constexpr std::int64_t kMaxNew = 200;
constexpr Nanoseconds kMs = 1'000'000;

struct Burst {
  std::int64_t workers;
  std::int64_t revoked;
  std::int64_t turns;
  bool is_mixed;
};

// Two of three workers are borrowed; eight of them, of both kinds, fail together.
bool is_borrowed(std::int64_t number) { return number % 3 != 0; }

std::vector<Event> joined(const Burst& burst, std::mt19937_64& random) {
  std::vector<Event> events;
  for (WorkerId number = 0; number < burst.workers; ++number) {
    const auto kind = is_borrowed(number) ? WorkerKind::kBorrowed : WorkerKind::kDedicated;
    const double speed = 1 + static_cast<double>(random() % 4);
    events.push_back(
        WorkerJoined{number, kind, 2 * burst.turns, 4000 * speed, 20 / speed, 0.5, 0, number / 8});
    events.push_back(GrantChanged{number, 1, 2 * burst.turns * (kContext + kMaxNew), 0});
  }
  return events;
}

std::vector<Event> created(std::int64_t trajectories) {
  std::vector<Event> events;
  for (TrajectoryId id = 0; id < trajectories; ++id) events.push_back(TrajectoryCreated{id});
  return events;
}

std::vector<Event> ready(std::int64_t trajectories, bool is_mixed) {
  std::vector<Event> events;
  for (TrajectoryId id = 0; id < trajectories; ++id) {
    const std::int64_t shorter = is_mixed ? id * 7919 % 700 : 0;
    const std::int64_t less = is_mixed ? id * 104'729 % 150 : 0;
    events.push_back(TurnReady{id, 0, kContext - shorter, kMaxNew - less});
  }
  return events;
}

// The first borrowed workers say what became of their turns, and that they have no lease.
std::vector<Event> revocation(const Burst& burst, const std::vector<Action>& starts) {
  std::vector<bool> is_gone(static_cast<std::size_t>(burst.workers));
  std::int64_t left = burst.revoked;
  for (std::int64_t number = 0; number < burst.workers && left > 0; ++number) {
    if (!is_borrowed(number)) continue;
    is_gone[static_cast<std::size_t>(number)] = true;
    --left;
  }
  std::vector<Event> events;
  for (const Action& action : starts) {
    const auto* const start = std::get_if<Start>(&action);
    if (start == nullptr || !is_gone[static_cast<std::size_t>(start->worker)]) continue;
    events.push_back(TurnEnded{start->trajectory, start->turn, start->worker, start->grant_epoch,
                               TurnEnd::kInterrupted, 0});
  }
  for (std::int64_t number = 0; number < burst.workers; ++number) {
    if (is_gone[static_cast<std::size_t>(number)]) events.push_back(GrantChanged{number, 1, 0, 0});
  }
  return events;
}

struct Measured {
  double ms{0};
  std::int64_t lost{0};
  std::int64_t moved{0};
};

Measured measure(const Burst& burst, std::uint64_t seed) {
  std::mt19937_64 random{seed};
  Settings settings;
  settings.batch_trajectories = 1 << 20;
  settings.hazard_per_s = 1.0 / 60;
  settings.hazard_prior_s = 300;
  settings.exposure_max_s = 30;
  settings.urgent_share_max = 0.75;
  settings.requeue_s = 0.1;
  settings.turn_tokens_prior = 128;
  settings.wait_max_ns = 30'000 * kMs;
  settings.stall_ns = 2000 * kMs;
  Core core{settings, PlacementPolicy::kJoint};
  std::vector<Action> actions;
  Nanoseconds now_ns = 0;
  const auto step = [&](const std::vector<Event>& events) {
    actions.clear();
    return core.step(events, now_ns += kMs, actions).ok();
  };
  const std::int64_t trajectories = burst.workers * burst.turns;
  if (!step(joined(burst, random)) || !step(created(trajectories))) return {};
  if (!step(ready(trajectories, burst.is_mixed))) return {};
  const std::vector<Event> events = revocation(burst, actions);
  const auto began = std::chrono::steady_clock::now();
  if (!step(events)) return {};
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
  Measured measured{.ms = took.count(), .lost = std::ssize(events) - burst.revoked};
  for (const Action& action : actions) measured.moved += std::holds_alternative<Start>(action);
  return measured;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  const Burst burst{std::atoll(argv[1]), std::atoll(argv[2]), std::atoll(argv[3]),
                    std::atoll(argv[5]) != 0};
  const auto rounds = static_cast<std::size_t>(std::atoll(argv[4]));
  std::vector<double> samples_ms;
  Measured last;
  for (std::size_t round = 0; round < rounds; ++round) {
    last = measure(burst, round + 1);
    if (last.lost == 0 || last.moved != last.lost) return 1;
    samples_ms.push_back(last.ms);
  }
  const auto median = samples_ms.begin() + static_cast<std::ptrdiff_t>(rounds / 2);
  std::nth_element(samples_ms.begin(), median, samples_ms.end());
  std::printf("%f %lld\n", *median, static_cast<long long>(last.moved));
}
