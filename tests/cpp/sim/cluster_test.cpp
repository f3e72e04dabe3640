#include "sim/cluster.h"

#include <cstdint>
#include <random>
#include <variant>

#include "check.h"

using namespace rose;
using namespace rose::sim;

namespace {

constexpr Nanoseconds kMs = 1'000'000;
constexpr scheduler::Settings kSettings{.max_staleness = 1,
                                        .batch_trajectories = 4,
                                        .recall_grace_ns = 200 * kMs,
                                        .retry_ns = 500 * kMs,
                                        .stall_ns = 2000 * kMs,
                                        .wait_max_ns = 5000 * kMs,
                                        .hazard_per_s = 0.1,
                                        .turn_tokens_prior = 50,
                                        .turn_window = 64};

bool always(Nanoseconds, std::int64_t) { return true; }

JobSpec random_job(std::mt19937_64& random, int trajectories) {
  const auto pick = [&](std::uint64_t most) { return static_cast<std::int64_t>(random() % most); };
  JobSpec job;
  job.first_turn.push_back(0);
  for (int i = 0; i < trajectories; ++i) {
    for (std::int64_t turn = pick(4); turn >= 0; --turn) {
      job.input_tokens.push_back(1 + pick(300));
      job.output_tokens.push_back(1 + pick(90));
      job.tool_ns.push_back(pick(400) * kMs);
    }
    job.first_turn.push_back(std::ssize(job.input_tokens));
    job.group.push_back(i / 2);
  }
  job.batch = 4;
  job.train_ns = 300 * kMs;
  job.max_staleness = 1;
  return job;
}

// The loan ends and begins again, with varying memory and speed.
Lending random_lending(std::mt19937_64& random) {
  Lending lending;
  Nanoseconds at_ns = 0;
  for (int i = 0; i < 200; ++i) {
    lending.at_ns.push_back(at_ns);
    lending.share.push_back(static_cast<double>(random() % 4) / 3);
    lending.kv_tokens.push_back(static_cast<std::int64_t>(random() % 3) * 2500);
    at_ns += static_cast<Nanoseconds>(1 + random() % 700) * kMs;
  }
  lending.kv_tokens.back() = 0;
  return lending;
}

World random_world(std::uint64_t seed) {
  std::mt19937_64 random{seed};
  World world{.workers = {},
              .jobs = {random_job(random, 40)},
              .versions = 4,
              .horizon_ns = 1'000'000'000 * kMs,
              .knobs = {}};
  for (int number = 0; number < 4; ++number) {
    WorkerSpec worker{.number = number,
                      .kind = number == 0 ? WorkerKind::kDedicated : WorkerKind::kBorrowed,
                      .times = {2000, 8, 0.5, 0.001},
                      .seats = 6,
                      .kv_tokens = 6000,
                      .start_up_ns = 20 * kMs,
                      .update_ns = 150 * kMs,
                      .pause_ns = 10 * kMs,
                      .lending = {}};
    if (number > 0) worker.lending = random_lending(random);
    world.workers.push_back(worker);
  }
  return world;
}

ClusterOutcome run(const World& world,
                   scheduler::PlacementPolicy policy = scheduler::PlacementPolicy::kJoint) {
  scheduler::Core core{kSettings, policy};
  Cluster cluster{world, core};
  CHECK(cluster.run(always).ok());
  return cluster.outcome();
}

TEST(every_token_that_an_engine_gave_is_delivered_once) {
  std::int64_t revocations = 0;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const ClusterOutcome outcome = run(random_world(seed));
    std::int64_t generated = 0;
    for (const std::int64_t tokens : outcome.tokens_by_worker) generated += tokens;
    CHECK_EQ(outcome.tokens_lost, 0);
    CHECK_EQ(outcome.jobs[0].tokens_delivered, generated);
    CHECK_EQ(outcome.jobs[0].versions.size(), 4);
    revocations += outcome.revocations;
  }
  CHECK(revocations > 30);
}

TEST(equal_worlds_have_equal_digests_and_different_worlds_different_ones) {
  const ClusterOutcome outcome = run(random_world(1));
  CHECK_EQ(run(random_world(1)).digest, outcome.digest);
  CHECK(run(random_world(2)).digest != outcome.digest);
}

TEST(the_log_has_all_events_and_actions_of_the_digest) {
  World world = random_world(3);
  world.knobs.is_logged = true;
  const ClusterOutcome outcome = run(world);
  std::int64_t events = 0;
  std::int64_t starts = 0;
  ActionDigest digest;
  for (const LoggedStep& step : outcome.log) {
    events += std::ssize(step.events);
    for (const scheduler::Action& action : step.actions) {
      starts += std::holds_alternative<scheduler::Start>(action) ? 1 : 0;
      digest.add(action);
    }
  }
  CHECK_EQ(events, outcome.events);
  CHECK_EQ(starts, outcome.decisions);
  CHECK_EQ(digest.value(), outcome.digest);
}

TEST(no_turn_starts_on_a_dead_grant) {
  World world = random_world(4);
  world.knobs.is_logged = true;
  std::vector<std::int64_t> epochs(world.workers.size(), 0);
  std::vector<std::int64_t> tokens(world.workers.size(), 0);
  for (const LoggedStep& step : run(world).log) {
    for (const scheduler::Event& event : step.events) {
      if (const auto* const grant = std::get_if<scheduler::GrantChanged>(&event)) {
        epochs[static_cast<std::size_t>(grant->worker)] = grant->grant_epoch;
        tokens[static_cast<std::size_t>(grant->worker)] = grant->kv_tokens;
      }
    }
    for (const scheduler::Action& action : step.actions) {
      if (const auto* const start = std::get_if<scheduler::Start>(&action)) {
        CHECK_EQ(start->grant_epoch, epochs[static_cast<std::size_t>(start->worker)]);
        CHECK(tokens[static_cast<std::size_t>(start->worker)] > 0);
      }
    }
  }
}

TEST(it_stops_when_asked) {
  World world = random_world(5);
  world.jobs[0].train_ns = 2 * world.horizon_ns;
  scheduler::Core core{kSettings, scheduler::PlacementPolicy::kJoint};
  Cluster cluster{world, core};
  int asked = 0;
  CHECK(cluster.run([&](Nanoseconds, std::int64_t) { return ++asked < 2; }).ok());
  CHECK_EQ(asked, 2);
  CHECK(cluster.outcome().ended_ns < world.horizon_ns);
}

}  // namespace
