// What ends a turn early, or keeps it from a worker: versions, pauses, cuts, refusals and crashes.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "check.h"
#include "scheduler/core.h"

using namespace rose;
using namespace rose::scheduler;

namespace {

constexpr Nanoseconds kMs = 1'000'000;
constexpr Settings kSettings{.max_staleness = 1,
                             .batch_trajectories = 64,
                             .worker_lag_max = 100,
                             .recall_grace_ns = 40 * kMs,
                             .retry_ns = 30 * kMs,
                             .stall_ns = 1000 * kMs,
                             .wait_max_ns = 200 * kMs,
                             .reserve_ahead_tokens = 4};

// A core with its clock, and workers with room for all turns.
class Rig {
 public:
  std::vector<Action> step(std::vector<Event> events, Nanoseconds after_ns = 0) {
    now_ns_ += after_ns;
    std::vector<Action> actions;
    CHECK(core.step(events, now_ns_, actions).ok());
    return actions;
  }
  void join(WorkerId worker, std::int64_t version = 0, std::int64_t epoch = 1) {
    step({WorkerJoined{worker, WorkerKind::kDedicated, 8, 1000.0, 10.0, 1.0, version},
          GrantChanged{worker, epoch, 10'000, 0}});
  }
  std::vector<Action> ready(TrajectoryId trajectory, Versions accepted = {}) {
    step({TrajectoryCreated{trajectory}});
    return step({TurnReady{trajectory, 0, 10, 20, accepted.min, accepted.max}});
  }

  Core core{kSettings, PlacementPolicy::kJoint};

 private:
  Nanoseconds now_ns_{kMs};
};

template <typename Kind>
std::optional<Kind> first(const std::vector<Action>& actions) {
  for (const Action& action : actions) {
    if (const auto* const found = std::get_if<Kind>(&action)) return *found;
  }
  return std::nullopt;
}

// The first action of a kind, of which there must be one.
template <typename Kind>
Kind only(const std::vector<Action>& actions) {
  const std::optional<Kind> found = first<Kind>(actions);
  CHECK(found.has_value());
  return found.value_or(Kind{});
}

template <typename Kind>
std::int64_t count(const std::vector<Action>& actions) {
  return std::count_if(actions.begin(), actions.end(),
                       [](const Action& action) { return std::holds_alternative<Kind>(action); });
}

TurnProgress progress(const Start& start, std::int64_t first_token, std::int64_t tokens,
                      std::int64_t version_min, std::int64_t version_max) {
  return {start.trajectory, start.turn, start.worker, start.grant_epoch,
          first_token,      tokens,     version_min,  version_max};
}

TurnEnded ended(const Start& start, TurnEnd end, std::int64_t tokens) {
  return {start.trajectory, start.turn, start.worker, start.grant_epoch, end, tokens};
}

// ---- versions

TEST(a_turn_starts_only_on_a_worker_whose_version_it_accepts) {
  Rig rig;
  rig.join(0, 1);
  rig.join(1, 2);
  rig.join(2, 3);
  CHECK_EQ(only<Start>(rig.ready(1, {2, 2})).worker, 1);
  CHECK_EQ(only<Start>(rig.ready(2, {3, kCountMax})).worker, 2);
  CHECK_EQ(only<Start>(rig.ready(3, {0, 1})).worker, 0);
  CHECK(!first<Start>(rig.ready(4, {4, 9})));
  CHECK_EQ(only<Start>(rig.step({VersionCommitted{0, 5}})).trajectory, 4);
}

TEST(a_commit_beyond_a_turns_versions_recalls_it_and_no_other) {
  Rig rig;
  rig.join(0, 1);
  const Start limited = only<Start>(rig.ready(1, {0, 1}));
  const Start free = only<Start>(rig.ready(2));
  rig.join(1, 1);
  rig.step({progress(limited, 0, 3, 1, 1)});
  const auto recalled = rig.step({VersionCommitted{0, 2}});
  CHECK_EQ(count<Stop>(recalled), 1);
  CHECK_EQ(only<Stop>(recalled).trajectory, 1);
  const Start moved = only<Start>(rig.step({ended(limited, TurnEnd::kInterrupted, 3)}));
  CHECK_EQ(moved.worker, 1);
  CHECK_EQ(moved.first_token, 3);
  CHECK_EQ(only<Deliver>(rig.step({progress(free, 0, 1, 2, 2)})).tokens, 1);
}

TEST(tokens_outside_the_versions_of_a_turn_are_never_delivered) {
  Rig rig;
  rig.join(0, 1);
  rig.join(1, 1);
  const Start start = only<Start>(rig.ready(1, {1, 1}));
  const auto wrong = rig.step({progress(start, 0, 3, 1, 2)});
  CHECK(!first<Deliver>(wrong));
  CHECK_EQ(count<Stop>(wrong), 1);
  CHECK(!first<Deliver>(rig.step({progress(start, 0, 2, 2, 2)})));
  CHECK_EQ(rig.core.stats().counters.tokens_ignored, 5);
  // Its end does not wait for tokens that are refused.
  const Start moved = only<Start>(rig.step({ended(start, TurnEnd::kFinished, 3)}));
  CHECK(moved.worker != start.worker);
  CHECK_EQ(moved.first_token, 0);
}

TEST(a_worker_whose_tokens_show_another_version_does_not_get_the_turn_back) {
  Rig rig;
  rig.join(0, 1);
  rig.join(1, 1);
  Start start = only<Start>(rig.ready(1, {0, 1}));
  std::int64_t starts = 1;
  for (int round = 0; round < 20; ++round) {
    rig.step({progress(start, 0, 1, 2, 2)});
    rig.step({ended(start, TurnEnd::kInterrupted, 0)});
    if (const auto again = first<Start>(rig.step({}, 500 * kMs))) {
      start = *again;
      ++starts;
    }
  }
  CHECK(starts <= 2);  // each worker has had it at most once
}

TEST(a_turn_that_every_worker_has_left_behind_is_dropped_and_one_that_is_early_waits) {
  Rig rig;
  rig.ready(1, {0, 1});
  CHECK_EQ(rig.core.stats().queued, 1);  // without a worker it waits
  rig.join(0, 1);
  rig.join(1, 2);
  const Start start{1, 0, 0, 1, 0, 20};
  CHECK(!first<Drop>(rig.step({VersionCommitted{1, 3}})));
  rig.step({VersionCommitted{0, 2}});
  const auto dropped = first<Drop>(rig.step({ended(start, TurnEnd::kInterrupted, 0)}));
  CHECK_EQ(dropped->trajectory, 1);
  CHECK(dropped->reason == DropReason::kVersion);
  CHECK(!first<Drop>(rig.ready(2, {9, 9})));
  CHECK_EQ(rig.core.stats().queued, 1);
}

TEST(the_last_worker_in_range_that_is_lost_or_drained_leaves_a_turn_outdated) {
  for (const bool is_drained : {true, false}) {
    Rig rig;
    rig.join(0, 1);
    rig.join(1, 2);
    rig.ready(1, {0, 1});
    const Event leaves = is_drained ? Event{WorkerDrained{0}} : Event{WorkerLost{0}};
    auto actions = rig.step({leaves});
    if (is_drained) actions = rig.step({}, 40 * kMs);
    CHECK(only<Drop>(actions).reason == DropReason::kVersion);
  }
}

// ---- pauses

TEST(nothing_starts_while_paused_and_all_goes_on_after) {
  Rig rig;
  rig.join(0);
  rig.join(1);
  const Start start = only<Start>(rig.ready(1));
  rig.step({progress(start, 0, 2, 0, 0)});
  CHECK(rig.step({Paused{false}}).empty());
  CHECK(!first<Start>(rig.ready(2)));
  CHECK_EQ(only<Deliver>(rig.step({progress(start, 2, 1, 0, 0)})).tokens, 1);
  const auto stopped = rig.step({Paused{true}});
  CHECK_EQ(count<Stop>(stopped), 1);
  rig.step({ended(start, TurnEnd::kInterrupted, 3)});
  CHECK(rig.step({}, 5000 * kMs).empty());
  auto again = Core::restored(rig.core.snapshot());
  CHECK(again.ok());
  std::vector<Action> none;
  const std::vector<Event> no_events;
  CHECK(again.value()->step(no_events, 10'000 * kMs, none).ok());
  CHECK(none.empty());
  const auto started = rig.step({Resumed{}});
  CHECK_EQ(count<Start>(started), 2);
}

// ---- cuts

TEST(a_cut_finishes_a_turn_wherever_it_is_and_what_comes_later_is_stale) {
  for (const bool is_interrupted : {false, true}) {
    Rig rig;
    rig.join(0);
    const Start start = only<Start>(rig.ready(1));
    rig.step({progress(start, 0, 5, 0, 0)});
    if (is_interrupted) rig.step({ended(start, TurnEnd::kInterrupted, 5)});
    const auto cut = rig.step({TurnCut{1, 0, 3}});
    CHECK_EQ(count<Stop>(cut), is_interrupted ? 0 : 1);
    CHECK_EQ(only<TurnDone>(cut).turn, 0);
    CHECK(rig.step({progress(start, 5, 1, 0, 0), ended(start, TurnEnd::kFinished, 6)}).empty());
    CHECK(rig.step({TurnCut{1, 0, 3}}).empty());
    const auto next = rig.step({TurnReady{1, 1, 13, 5}});
    CHECK_EQ(only<Start>(next).turn, 1);
    CHECK(rig.step({TurnCut{1, 1, 1}}).empty());  // it has no token yet
  }
}

// ---- refusals and crashes

TEST(a_refused_turn_is_dropped_at_once_and_the_others_go_on) {
  Rig rig;
  rig.join(0);
  const Start bad = only<Start>(rig.ready(1));
  rig.ready(2);
  const auto actions = rig.step({ended(bad, TurnEnd::kRefused, 0)});
  CHECK_EQ(count<Drop>(actions), 1);
  CHECK(only<Drop>(actions).reason == DropReason::kRefused);
  CHECK_EQ(rig.core.stats().running, 1);
}

TEST(a_turn_that_ends_two_workers_is_dropped_alone) {
  Rig rig;
  rig.join(0);
  for (TrajectoryId id = 1; id <= 6; ++id) rig.ready(id);  // 3 is the one that kills
  rig.join(1);
  std::vector<TrajectoryId> dropped;
  std::vector<Action> actions = rig.step({WorkerLost{0}});
  std::vector<Start> started;
  for (int round = 0; round < 200 && rig.core.stats().counters.done == 0; ++round) {
    for (const Action& action : actions) {
      if (const auto* const start = std::get_if<Start>(&action)) started.push_back(*start);
      if (const auto* const drop = std::get_if<Drop>(&action)) dropped.push_back(drop->trajectory);
    }
    std::vector<Event> events;
    std::vector<Start> left;
    bool is_dead = false;
    for (const Start& start : started) is_dead = is_dead || start.trajectory == 3;
    for (const Start& start : started) {
      if (is_dead) continue;
      events.push_back(progress(start, start.first_token, 1, 0, 0));
      left.push_back({start.trajectory, start.turn, start.worker, start.grant_epoch,
                      start.first_token + 1, start.max_new_tokens});
    }
    if (is_dead) {
      events = {WorkerLost{1}};
      left.clear();
    }
    started = left;
    actions = rig.step(events, 10 * kMs);
    if (is_dead) {
      for (const Action& action : actions) {
        if (const auto* const drop = std::get_if<Drop>(&action)) {
          dropped.push_back(drop->trajectory);
        }
      }
      break;
    }
  }
  CHECK_EQ(dropped.size(), std::size_t{1});
  CHECK_EQ(dropped.front(), 3);
  CHECK_EQ(rig.core.stats().queued, 5);
  rig.join(2);
  CHECK(rig.core.stats().running > 0);
}

TEST(a_loss_after_a_token_or_without_a_crash_is_not_held_against_a_turn) {
  for (const bool has_tokens : {true, false}) {
    Rig rig;
    rig.join(0);
    std::optional<Start> start = first<Start>(rig.ready(1));
    for (WorkerId worker = 0; worker < 5; ++worker) {
      if (has_tokens) rig.step({progress(*start, start->first_token, 1, 0, 0)});
      rig.join(worker + 1);
      const auto actions = rig.step({WorkerLost{worker, has_tokens}});
      CHECK(!first<Drop>(actions));
      start = first<Start>(actions);
      CHECK_EQ(start->worker, worker + 1);
    }
  }
}

// ---- workers

TEST(a_drained_worker_loses_its_turns_at_the_token_and_gets_no_more) {
  Rig rig;
  rig.join(0);
  const Start start = only<Start>(rig.ready(1));
  rig.step({progress(start, 0, 2, 0, 0)});
  CHECK_EQ(rig.core.turns_on(0), 1);
  CHECK_EQ(count<Stop>(rig.step({WorkerDrained{0}})), 1);
  CHECK_EQ(rig.core.turns_on(0), 1);
  CHECK_EQ(only<Deliver>(rig.step({progress(start, 2, 1, 0, 0)})).tokens, 1);
  CHECK(rig.step({GrantChanged{0, 7, 10'000, 0}, ended(start, TurnEnd::kInterrupted, 3)}).empty());
  CHECK_EQ(rig.core.turns_on(0), 0);
  CHECK(rig.step({}, 1000 * kMs).empty());
  rig.step({WorkerLost{0}});
  rig.step({WorkerJoined{0, WorkerKind::kDedicated, 8, 1000.0, 10.0, 1.0, 0}});
  const auto again = first<Start>(rig.step({GrantChanged{0, 8, 10'000, 0}}));
  CHECK_EQ(again->first_token, 3);
}

TEST(measured_rates_count_at_once_and_the_turns_stay) {
  Rig rig;
  rig.join(0);
  rig.join(1);
  CHECK_EQ(only<Start>(rig.ready(1)).worker, 0);
  CHECK(
      rig.step({WorkerMeasured{0, 1000.0, 500.0, 1.0}, WorkerMeasured{9, 1.0, 1.0, 0.0}}).empty());
  CHECK_EQ(only<Start>(rig.ready(2)).worker, 1);
  CHECK_EQ(only<Start>(rig.ready(3)).worker, 1);
  CHECK(rig.step({WorkerMeasured{0, 1000.0, 0.1, 0.0}}).empty());
  CHECK_EQ(only<Start>(rig.ready(4)).worker, 0);
  std::vector<Action> actions;
  const std::vector<Event> wrong{WorkerMeasured{0, 0.0, 1.0, 1.0}};
  CHECK(!rig.core.step(wrong, 10'000 * kMs, actions).ok());
}

}  // namespace
