#include "scheduler/core.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "check.h"
#include "scheduler/turn_queue.h"

using namespace rose;
using namespace rose::scheduler;

namespace {

constexpr Nanoseconds kMs = 1'000'000;
constexpr Settings kSettings{.max_staleness = 1,
                             .batch_trajectories = 64,
                             .worker_lag_max = 1,
                             .recall_grace_ns = 40 * kMs,
                             .retry_ns = 30 * kMs,
                             .attempts_max = 3,
                             .stall_ns = 100 * kMs,
                             .wait_max_ns = 200 * kMs,
                             .hazard_per_s = 0.1,
                             .turn_tokens_prior = 10,
                             .turns_prior = 2,
                             .token_s_prior = 0.01,
                             .tool_s_prior = 0.1,
                             .job_weight = 2,
                             .turn_window = 16,
                             .version_window = 4,
                             .reserve_quantile = 0.9,
                             .reserve_ahead_tokens = 4,
                             .longest_first = 1};

WorkerJoined joined(WorkerId worker, WorkerKind kind) {
  return {worker, kind, 4, 1000.0, 10.0, 1.0, 0};
}

std::vector<Action> step(Core& core, std::vector<Event> events, Nanoseconds now_ns) {
  std::vector<Action> actions;
  CHECK(core.step(events, now_ns, actions).ok());
  return actions;
}

TEST(only_a_queued_turn_starts_and_an_ended_trajectory_stays_ended) {
  for (std::size_t from = 0; from < kTrajectoryStates; ++from) {
    const auto state = static_cast<TrajectoryState>(from);
    CHECK_EQ(is_move(state, TrajectoryState::kRunning), state == TrajectoryState::kQueued);
    for (std::size_t to = 0; to < kTrajectoryStates; ++to) {
      const auto next = static_cast<TrajectoryState>(to);
      if (is_over(state)) CHECK(!is_move(state, next));
      if (is_on_worker(next)) {
        CHECK_EQ(is_move(state, next), next == TrajectoryState::kRunning
                                           ? state == TrajectoryState::kQueued
                                           : state == TrajectoryState::kRunning);
      }
    }
  }
}

TEST(an_illegal_move_changes_nothing) {
  TrajectoryTable table;
  Trajectory& trajectory = table.create(1);
  CHECK(!table.move(trajectory, TrajectoryState::kRunning, 5));
  CHECK(trajectory.state == TrajectoryState::kWaiting);
  CHECK_EQ(table.count(TrajectoryState::kWaiting), 1);
  CHECK_EQ(table.count(TrajectoryState::kRunning), 0);
}

TEST(starved_turns_come_first_and_leave_the_queue_like_others) {
  TurnQueue queue;
  const QueueKey old{QueueRank::kFresh, 0, 10, 1};
  const QueueKey young{QueueRank::kFresh, 0, 20, 2};
  const QueueKey resumed{QueueRank::kResumed, 0, 30, 3};
  queue.push(old, 100);
  queue.push(young, 50);
  queue.push(resumed, 100);
  CHECK_EQ(queue.begin()->trajectory, 3);
  queue.starve(49);
  CHECK_EQ(queue.begin()->trajectory, 3);
  queue.starve(50);
  CHECK_EQ(queue.begin()->trajectory, 2);
  queue.remove(young, 50);
  queue.remove(resumed, 100);
  CHECK_EQ(queue.begin()->trajectory, 1);
  queue.remove(old, 100);
  CHECK(queue.is_empty());
}

TEST(a_lost_workers_slot_is_reused_and_its_epochs_are_remembered) {
  WorkerTable workers{0.0};
  workers.join(joined(7, WorkerKind::kDedicated));
  const std::size_t slot = *workers.find(7);
  workers.set_grant(slot, {7, 3, 100, 0}, 1);
  CHECK_EQ(workers.columns().room_tokens[slot], 100.0);
  CHECK(workers.end_grant(slot).empty());
  workers.leave(slot);
  CHECK(!workers.find(7));
  workers.join(joined(8, WorkerKind::kDedicated));
  CHECK(workers.find(8) == slot);
  workers.join(joined(7, WorkerKind::kDedicated));
  CHECK(workers.find(7) == 1);
  CHECK(!workers.is_new_epoch(1, 3));
  CHECK(workers.is_new_epoch(1, 4));
}

TEST(among_equals_the_smaller_number_wins) {
  for (const PlacementPolicy policy :
       {PlacementPolicy::kJoint, PlacementPolicy::kRosePublished,
        PlacementPolicy::kLeastLoadedSticky, PlacementPolicy::kMlfq}) {
    WorkerTable workers{0.0};
    for (const WorkerId number : {5, 2, 9}) {
      workers.join(joined(number, WorkerKind::kBorrowed));
      workers.set_grant(*workers.find(number), {number, 1, 100, 0}, 1);
    }
    Placement placement{kSettings, policy};
    Query query;
    query.need_tokens = 100;
    CHECK_EQ(workers.columns().number[*placement.choose(workers, query)], 2);
    query.need_tokens = 101;
    CHECK(!placement.choose(workers, query));
  }
}

TEST(a_scan_equals_the_cost_of_each_row_bit_for_bit) {
  std::mt19937_64 random{3};
  const auto below = [&](int n) {
    return static_cast<double>(random() % static_cast<unsigned>(n));
  };
  for (const int count : {0, 1, 3, 4, 5, 31, 32, 33}) {
    WorkerTable workers{0.3};
    for (WorkerId number = 0; number < count; ++number) {
      const auto kind = static_cast<WorkerKind>(random() % 2);
      workers.join({.worker = number,
                    .kind = kind,
                    .seats = 4,
                    .prefill_tokens_per_s = 1 + below(5000),
                    .decode_step_ms = 1 + below(30),
                    .decode_ms_per_sequence = below(9) / 7,
                    .version = 0,
                    .decode_ms_per_context_token = below(9) / 700});
      const std::size_t slot = *workers.find(number);
      workers.set_grant(slot, {number, 1, 1000, 0}, 1);
      workers.hold(slot, 1, 10, 10 + static_cast<std::int64_t>(below(70)));
      workers.observe_pace(slot, 1 + below(9), 1 + below(9), 0.3);
    }
    CostQuery query;
    query.prompt_tokens = below(900);
    query.expected_tokens = below(300) / 7;
    query.urgency = below(100) / 100;
    query.published = below(3);
    CostTable table;
    table.resize(workers.size());
    for (std::size_t slot = 0; slot < workers.size(); ++slot) {
      table.set(slot, workers.columns(), slot);
    }
    std::vector<double> costs_s;
    table.scan(kSettings, query, costs_s);
    CHECK_EQ(costs_s.size(), CostTable::padded(workers.size()));
    for (std::size_t slot = 0; slot < workers.size(); ++slot) {
      CHECK_EQ(costs_s[slot], cost_s(kSettings, workers.columns(), slot, query, 0));
    }
  }
}

TEST(a_refused_batch_changes_nothing) {
  Core core{kSettings, PlacementPolicy::kJoint};
  std::vector<Action> actions;
  const std::vector<Event> wrong{TrajectoryCreated{1}, TrajectoryCreated{1}};
  CHECK(core.step(wrong, 1, actions).code() == Code::kInvalidArgument);
  CHECK(actions.empty());
  CHECK_EQ(core.stats().waiting + core.stats().environment, 0);
  CHECK_EQ(step(core, {TrajectoryCreated{1}}, 1).size(), 1);
}

// Numbers that could break sums, comparisons and conversions.
class Noise {
 public:
  explicit Noise(std::uint64_t seed) : random_{seed} {}

  std::int64_t number() {
    constexpr auto kMin = std::numeric_limits<std::int64_t>::min();
    constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
    const std::int64_t odd[] = {kMin, kMin + 1, -1, 0, 1, kCountMax, kCountMax + 1, kMax - 1, kMax};
    return below(4) == 0 ? odd[below(9)] : below(6);
  }

  double ms() {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const double odd[] = {-1, 0, 1e300, kInfinity, -kInfinity, std::nan("")};
    return below(4) == 0 ? odd[below(6)] : static_cast<double>(below(60));
  }

  Event event() {
    switch (below(7)) {
      case 0:
        return GrantChanged{number(), number(), number(), ms()};
      case 1:
        return VersionCommitted{number(), number()};
      case 2:
        return TurnProgress{number(), number(), number(), number(),
                            number(), number(), number(), number()};
      case 3:
        return TurnCut{number(), number(), below(4)};
      case 4:
        if (below(8) == 0) return Paused{below(2) == 0};
        return Resumed{};
      case 5:
        return WorkerMeasured{number(), 1.0 + static_cast<double>(below(9)), 1.0, 0.0};
      default:
        return TurnEnded{number(), number(), number(), number(), static_cast<TurnEnd>(below(4)),
                         number()};
    }
  }

  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(n));
  }

 private:
  std::mt19937_64 random_;
};

TEST(any_reports_of_workers_are_survived_and_two_cores_agree) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Noise noise{seed};
    const auto policy = static_cast<PlacementPolicy>(seed % EnumSize<PlacementPolicy>::value);
    Core core{kSettings, policy};
    Core twin{kSettings, policy};
    Nanoseconds now_ns = 1;
    TrajectoryId next = 0;
    std::set<TrajectoryId> in_environment;
    for (int round = 0; round < 400; ++round) {
      now_ns += noise.below(20) * kMs;
      std::vector<Event> events;
      if (next < 60) events.push_back(TrajectoryCreated{next++});
      for (const TrajectoryId id : in_environment) {
        const std::int64_t oldest = noise.below(3);
        const bool is_limited = noise.below(2) == 0;
        events.push_back(TurnReady{id, 0, noise.below(50), 1 + noise.below(20),
                                   is_limited ? oldest : 0,
                                   is_limited ? oldest + noise.below(3) : kCountMax});
      }
      in_environment.clear();
      const WorkerId worker = noise.below(6);
      const bool is_joined = core.stats().used_tokens.contains(worker);
      if (!is_joined) events.push_back(joined(worker, static_cast<WorkerKind>(worker % 2)));
      if (is_joined && noise.below(10) == 0) events.push_back(WorkerLost{worker});
      if (is_joined && noise.below(40) == 0) events.push_back(WorkerDrained{worker});
      for (int i = 0; i < 8; ++i) events.push_back(noise.event());
      const std::vector<Action> actions = step(core, events, now_ns);
      CHECK_EQ(step(twin, events, now_ns).size(), actions.size());
      for (const Action& action : actions) {
        if (const auto* admit = std::get_if<Admit>(&action)) {
          in_environment.insert(admit->trajectory);
        }
      }
      for (const auto& [number, used] : core.stats().used_tokens) CHECK(used >= 0);
    }
    const Stats stats = core.stats();
    CHECK(stats.counters.stale_events > 0);
    CHECK_EQ(stats.counters.stale_events, twin.stats().counters.stale_events);
    CHECK_EQ(stats.counters.tokens_delivered, twin.stats().counters.tokens_delivered);
  }
}

}  // namespace
