#include "scheduler/placement.h"

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "check.h"

using namespace rose;
using namespace rose::scheduler;

namespace {

constexpr Settings kSettings{.staleness_s_per_version = 0.5,
                             .leave_home_margin_s = 0.05,
                             .hazard_per_s = 0.1,
                             .requeue_s = 0.1};

struct Held {
  std::size_t slot;
  TrajectoryId trajectory;
  std::int64_t tokens;
};

// Workers, some on shared devices, whose book changes in every possible way.
class Shift {
 public:
  // Every other world starts with more workers than one block of the scan.
  explicit Shift(std::uint64_t seed) : random_{seed} {
    for (std::uint64_t joined = 0; seed % 2 == 0 && joined < 200; ++joined) join();
  }

  WorkerTable workers{kSettings.hazard_per_s};

  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(n));
  }

  void change() {
    const auto slot = any_granted();
    if (below(200) == 0) return end_all();
    switch (below(11)) {
      case 0:
        return join();
      case 1:
        return slot ? leave(*slot) : join();
      case 2:
        return slot ? end(*slot) : join();
      case 3:
        return slot && !held_.empty() ? release() : join();
      case 4:
        if (slot) workers.set_hazard(*slot, static_cast<double>(below(9)) / 7);
        return;
      case 5:
        if (slot) workers.set_version(*slot, below(3));
        return;
      case 6:
        if (slot) workers.observe_pace(*slot, 1 + static_cast<double>(below(9)), 3, 0.3);
        return;
      case 7:
        if (slot) workers.hold_off(*slot, below(2) * 50, 1);
        return;
      case 8:
        if (slot) workers.keep(*slot, 1 + below(30));
        return;
      default:
        if (slot) hold(*slot, 1 + below(40));
    }
  }
  void hold(std::size_t slot, std::int64_t tokens) {
    workers.hold(slot, next_, tokens, tokens / 2);
    held_.push_back({slot, next_++, tokens});
  }

 private:
  void join() {
    const WorkerId number = next_++;
    const auto kind = below(2) == 0 ? WorkerKind::kBorrowed : WorkerKind::kDedicated;
    const double speed = 1 + static_cast<double>(below(3));
    const DeviceId device = below(4) == 0 ? below(3) : kOwnDevice;
    workers.join({.worker = number,
                  .kind = kind,
                  .seats = 3,
                  .prefill_tokens_per_s = 50 * speed,
                  .decode_step_ms = 20 / speed,
                  .decode_ms_per_sequence = 1,
                  .version = below(3),
                  .device = device});
    workers.set_grant(*workers.find(number), {number, 1, 60 + below(60), 0}, 1);
  }
  void end(std::size_t slot) {
    workers.end_grant(slot);
    std::erase_if(held_, [&](const Held& one) { return one.slot == slot; });
  }
  void end_all() {
    for (std::optional<std::size_t> slot = any_granted(); slot; slot = any_granted()) end(*slot);
  }
  void leave(std::size_t slot) {
    end(slot);
    workers.leave(slot);
  }
  void release() {
    const auto place = held_.begin() + below(std::ssize(held_));
    workers.release(place->slot, place->trajectory, place->tokens);
    held_.erase(place);
  }
  std::optional<std::size_t> any_granted() {
    std::vector<std::size_t> slots;
    for (std::size_t slot = 0; slot < workers.size(); ++slot) {
      if (workers[slot].grant.is_live) slots.push_back(slot);
    }
    if (slots.empty()) return std::nullopt;
    return slots[static_cast<std::size_t>(below(std::ssize(slots)))];
  }

  std::mt19937_64 random_;
  std::int64_t next_{0};
  std::vector<Held> held_;
};

// The definition of a choice, over all workers and without cached state.
std::optional<std::size_t> cheapest(const WorkerColumns& workers, const Query& query) {
  std::optional<std::size_t> best;
  const auto cost = [&](std::size_t slot) {
    return cost_s(kSettings, workers, slot, query, query.home == slot ? query.hit_tokens : 0);
  };
  const auto can_take = [&](std::size_t slot) {
    const bool is_warm = query.home == slot && query.hit_tokens > 0;
    const auto& tokens =
        query.spares_caches && !is_warm ? workers.spare_tokens : workers.room_tokens;
    return tokens[slot] >= query.need_tokens && workers.grant_tokens[slot] >= query.most_tokens &&
           workers.version[slot] >= query.version_floor;
  };
  for (std::size_t slot = 0; slot < workers.size(); ++slot) {
    if (!can_take(slot)) continue;
    const bool is_better =
        !best || cost(slot) < cost(*best) ||
        (cost(slot) == cost(*best) && workers.number[slot] < workers.number[*best]);
    if (is_better) best = slot;
  }
  const bool stays = query.home && query.hit_tokens > 0 && can_take(*query.home) &&
                     cost(*query.home) - cost(*best) <= kSettings.leave_home_margin_s;
  return stays ? query.home : best;
}

// One of a few queries, so that they repeat.
Query any_query(Shift& shift) {
  Query query;
  query.prompt_tokens = static_cast<double>(20 * shift.below(3));
  query.need_tokens = query.prompt_tokens + static_cast<double>(1 + 9 * shift.below(2));
  query.spares_caches = shift.below(2) == 0;
  query.most_tokens = 50;
  query.expected_tokens = 10;
  query.urgency = shift.below(4) == 0 ? 1 : 0;
  query.published = 3;
  query.version_floor = static_cast<double>(shift.below(2));
  if (shift.workers.size() > 0 && shift.below(3) == 0) {
    query.home = static_cast<std::size_t>(shift.below(std::ssize(shift.workers.columns().number)));
    query.hit_tokens = query.prompt_tokens / 2;
  }
  return query;
}

TEST(the_choice_is_the_cheapest_of_all_workers_after_any_changes) {
  int found = 0;
  int lost = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Shift shift{seed};
    Placement placement{kSettings, PlacementPolicy::kJoint};
    for (int round = 0; round < 800; ++round) {
      for (std::int64_t changes = shift.below(4); changes > 0; --changes) shift.change();
      const Query query = any_query(shift);
      const auto slot = placement.choose(shift.workers, query);
      CHECK(slot == cheapest(shift.workers.columns(), query));
      slot ? ++found : ++lost;
      if (slot && shift.below(2) == 0) {
        shift.hold(*slot, static_cast<std::int64_t>(query.need_tokens));
      }
    }
  }
  CHECK(found > 1000 && lost > 100);
}

void join(WorkerTable& workers, WorkerId number, double speed) {
  workers.join({.worker = number,
                .kind = WorkerKind::kDedicated,
                .seats = 3,
                .prefill_tokens_per_s = 50 * speed,
                .decode_step_ms = 20 / speed,
                .decode_ms_per_sequence = 0,
                .version = 0});
  workers.set_grant(*workers.find(number), {number, 1, 60, 0}, 1);
}

TEST(among_equals_the_smallest_number_wins_in_any_row) {
  constexpr auto kWorkers = static_cast<WorkerId>(3 * kBlock);
  WorkerTable workers{kSettings.hazard_per_s};
  join(workers, kWorkers, 2);
  for (WorkerId number = kWorkers - 1; number >= 0; --number) join(workers, number, 1);
  Placement placement{kSettings, PlacementPolicy::kJoint};
  Query query;
  query.prompt_tokens = 20;
  query.need_tokens = 30;
  query.most_tokens = 50;
  CHECK(placement.choose(workers, query) == workers.find(kWorkers));
  query.avoid = workers.find(kWorkers);  // now the cheapest cannot take it
  CHECK(placement.choose(workers, query) == workers.find(0));
  workers.end_grant(*query.avoid);
  CHECK(placement.choose(workers, query) == workers.find(0));
}

TEST(the_lineup_has_the_workers_with_room_and_their_columns) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    Shift shift{seed};
    Lineup lineup;
    for (int round = 0; round < 400; ++round) {
      for (std::int64_t changes = shift.below(6); changes > 0; --changes) shift.change();
      lineup.settle(shift.workers);
      const WorkerColumns& all = shift.workers.columns();
      const Query query = any_query(shift);
      std::vector<double> costs_s;
      lineup.costs().scan(kSettings, query, costs_s);
      std::size_t rows = 0;
      for (std::size_t slot = 0; slot < all.size(); ++slot) {
        CHECK_EQ(lineup.row(slot) != Lineup::kNoRow, all.room_tokens[slot] >= 0);
        if (lineup.row(slot) == Lineup::kNoRow) continue;
        ++rows;
        CHECK_EQ(lineup.slot(lineup.row(slot)), slot);
        CHECK_EQ(lineup.tokens(false)[lineup.row(slot)], all.room_tokens[slot]);
        CHECK_EQ(lineup.tokens(true)[lineup.row(slot)], all.spare_tokens[slot]);
        CHECK_EQ(lineup.numbers()[lineup.row(slot)], static_cast<double>(all.number[slot]));
        CHECK_EQ(costs_s[lineup.row(slot)], cost_s(kSettings, all, slot, query, 0));
      }
      CHECK_EQ(lineup.size(), rows);
      for (std::size_t row = rows; row < CostTable::padded(rows); ++row) {
        CHECK(lineup.tokens(false)[row] < 0 && lineup.tokens(true)[row] < 0);
      }
    }
  }
}

}  // namespace
