#include "scheduler/placement.h"

#include <algorithm>
#include <limits>

namespace rose::scheduler {

namespace {

// A turn stays at its home while the home has at most 1.5 n + 2 turns, where n is the number of
// turns on the least loaded worker. If turns always stayed, the first workers with new weights
// would be overloaded. Where engines run many turns, the margin of two alone (the best value in
// verl's #7435) loses more by lost caches than it gains by balance.
constexpr double kStickyTurnsMax = 2;
constexpr double kStickyRatioMax = 1.5;

// After a revocation only a few prompts may restart on a worker at the same time, because decodes
// would starve otherwise. A single prompt may always restart.
bool can_restart(const WorkerColumns& workers, std::size_t slot, const Query& query) noexcept {
  const double under_way = workers.restart_tokens[slot];
  if (query.is_suspect) return under_way <= 0;
  if (query.restart_tokens <= 0 || under_way <= 0) return true;
  const double cached = query.home == slot ? query.hit_tokens : 0;
  return under_way + query.restart_tokens - cached <= query.burst_tokens;
}

bool can_expose(const WorkerColumns& workers, std::size_t slot, const Query& query) noexcept {
  return query.exposures == nullptr || workers.kind[slot] == WorkerKind::kDedicated ||
         query.exposures->can_join(query.job, workers.domain[slot], query.prompt_tokens,
                                   query.is_urgent);
}

bool is_warm_home(std::size_t slot, const Query& query) noexcept {
  return query.hit_tokens > 0 && query.home == slot;
}

// Contexts grow: if they do not fit at their final size, they evict one another's caches.
bool can_stay(const WorkerColumns& workers, std::size_t slot, const Query& query) noexcept {
  return (workers.residents[slot] + 1) * query.resident_tokens <= workers.grant_tokens[slot];
}

bool has_room(const WorkerColumns& workers, std::size_t slot, const Query& query) noexcept {
  if (is_warm_home(slot, query)) return workers.room_tokens[slot] >= query.need_tokens;
  const double tokens =
      query.spares_caches ? workers.spare_tokens[slot] : workers.room_tokens[slot];
  return tokens >= query.need_tokens && can_stay(workers, slot, query);
}

// True if the worker can take the turn, whatever the version of its weights and whether or not the
// turn's job is barred there.
bool can_take_but_for_version(const WorkerColumns& workers, std::size_t slot,
                              const Query& query) noexcept {
  return has_room(workers, slot, query) && workers.job[slot] == query.job &&
         workers.grant_tokens[slot] >= query.most_tokens && query.avoid != slot &&
         !(query.prefers_dedicated && workers.kind[slot] == WorkerKind::kBorrowed) &&
         can_restart(workers, slot, query) && can_expose(workers, slot, query);
}

bool can_take_but_for_bars(const WorkerColumns& workers, std::size_t slot,
                           const Query& query) noexcept {
  return workers.version[slot] >= query.version_floor &&
         workers.version[slot] <= query.version_ceiling &&
         can_take_but_for_version(workers, slot, query);
}

bool can_take(const WorkerColumns& workers, std::size_t slot, const Query& query) noexcept {
  return workers.is_barred[slot] == 0 && can_take_but_for_bars(workers, slot, query);
}

bool can_home_take(const WorkerColumns& workers, const Query& query) noexcept {
  return query.home && can_take(workers, *query.home, query);
}

// The worker with the fewest turns, of `kind` or of any kind.
std::optional<std::size_t> least_loaded(const WorkerColumns& workers, const Query& query,
                                        std::optional<WorkerKind> kind) noexcept {
  std::optional<std::size_t> best;
  for (std::size_t slot = 0; slot < workers.size(); ++slot) {
    if (kind && workers.kind[slot] != *kind) continue;
    if (!can_take(workers, slot, query)) continue;
    const bool is_better = !best || workers.turns[slot] < workers.turns[*best] ||
                           (workers.turns[slot] == workers.turns[*best] &&
                            workers.number[slot] < workers.number[*best]);
    if (is_better) best = slot;
  }
  return best;
}

}  // namespace

bool Placement::could_if_not_barred(const WorkerColumns& workers, std::size_t slot,
                                    const Query& query) noexcept {
  return can_take_but_for_bars(workers, slot, query);
}

std::optional<std::size_t> Placement::choose(WorkerTable& workers, const Query& query) {
  wait_s_ = 0;
  const std::optional<std::size_t> chosen = choose_by_policy(workers, query);
  if (chosen || wait_s_ > 0 || !query.prefers_dedicated) return chosen;
  // A borrowed worker now is better than a dedicated one later.
  Query any = query;
  any.prefers_dedicated = false;
  return choose_by_policy(workers, any);
}

std::optional<std::size_t> Placement::choose_by_policy(WorkerTable& workers, const Query& query) {
  switch (policy_) {
    case PlacementPolicy::kJoint:
      lineup_.settle(workers);
      return joint(workers.columns(), query);
    case PlacementPolicy::kRosePublished:
      return rose_published(workers.columns(), query);
    case PlacementPolicy::kLeastLoadedSticky:
    case PlacementPolicy::kMlfq:
      return least_loaded_sticky(workers.columns(), query);
  }
  return std::nullopt;
}

std::optional<std::size_t> Placement::cheapest(const WorkerColumns& workers, const Query& query) {
  const PricedRows rows{lineup_.size(), costs_s_, lineup_.tokens(query.spares_caches),
                        lineup_.numbers()};
  const std::optional<std::size_t> least = leasts_.find(rows, query.need_tokens);
  // The cheapest worker of all can usually take the turn.
  if (!least || can_take(workers, lineup_.slot(*least), query)) return least;
  return cheapest_able(workers, query);
}

std::optional<std::size_t> Placement::cheapest_able(const WorkerColumns& workers,
                                                    const Query& query) const noexcept {
  const std::vector<double>& tokens = lineup_.tokens(query.spares_caches);
  std::optional<std::size_t> best;
  double most_s = std::numeric_limits<double>::max();
  for (std::size_t block = 0; block < leasts_.blocks(); ++block) {
    if (leasts_.cost_s(block) > most_s) continue;
    const std::size_t end = std::min(lineup_.size(), (block + 1) * kBlock);
    for (std::size_t row = block * kBlock; row < end; ++row) {
      if (costs_s_[row] > most_s || tokens[row] < query.need_tokens) continue;
      const std::size_t slot = lineup_.slot(row);
      const bool is_better = !best || costs_s_[row] < costs_s_[*best] ||
                             workers.number[slot] < workers.number[lineup_.slot(*best)];
      if (!is_better || !can_take(workers, slot, query)) continue;
      best = row;
      most_s = costs_s_[row];
    }
  }
  return best;
}

std::optional<std::size_t> Placement::joint(const WorkerColumns& workers, const Query& query) {
  price(workers, query);
  std::optional<std::size_t> chosen = cheapest(workers, query);
  double chosen_s = chosen ? costs_s_[*chosen] : std::numeric_limits<double>::infinity();
  if (query.hit_tokens > 0 && can_home_take(workers, query)) {
    const double home_s = cost_s(settings_, workers, *query.home, query, query.hit_tokens);
    // A turn leaves a home with a warm cache only for a clear gain, because otherwise noise would
    // move turns back and forth.
    if (home_s - chosen_s <= settings_.leave_home_margin_s) {
      chosen = lineup_.row(*query.home);
      chosen_s = home_s;
    }
  }
  if (chosen && query.may_wait) wait_s_ = soon_s(workers, query, chosen_s);
  return chosen && wait_s_ <= 0 ? std::optional{lineup_.slot(*chosen)} : std::nullopt;
}

void Placement::price(const WorkerColumns& workers, const CostQuery& query) {
  if (query != priced_) {
    lineup_.costs().scan(settings_, query, costs_s_);
    leasts_.touch_all();
    priced_ = query;
    return;
  }
  // The same query repeats for the turns of a group, and for turns of a job that start together.
  costs_s_.resize(CostTable::padded(lineup_.size()));
  for (const std::size_t slot : lineup_.changed()) {
    const std::size_t row = lineup_.row(slot);
    if (row == Lineup::kNoRow) continue;
    costs_s_[row] = cost_s(settings_, workers, slot, query, 0);
    leasts_.touch(row);
  }
}

double Placement::soon_s(const WorkerColumns& workers, const Query& query,
                         double cost_s) const noexcept {
  double soonest_s = 0;
  const double own_weight = 1 + settings_.urgent_time_weight * query.urgency;
  for (std::size_t row = 0; row < lineup_.size(); ++row) {
    const std::size_t slot = lineup_.slot(row);
    if (workers.version[slot] >= query.version_floor) continue;
    // A worker that is late already may stay late for ever.
    const double wait_s = workers.commit_s[slot] - query.since_published_s;
    if (wait_s <= 0 || workers.is_barred[slot] != 0) continue;
    // After its commit the worker is no longer behind.
    const double behind_s =
        settings_.staleness_s_per_version * (query.published - workers.version[slot]);
    const bool is_better = costs_s_[row] - behind_s + own_weight * wait_s < cost_s;
    if (!is_better || !can_take_but_for_version(workers, slot, query)) continue;
    soonest_s = soonest_s > 0 ? std::min(soonest_s, wait_s) : wait_s;
  }
  return soonest_s;
}

std::optional<std::size_t> Placement::rose_published(const WorkerColumns& workers,
                                                     const Query& query) const noexcept {
  if (query.hit_tokens > 0 && can_home_take(workers, query)) return query.home;
  const auto dedicated = least_loaded(workers, query, WorkerKind::kDedicated);
  return dedicated ? dedicated : least_loaded(workers, query, WorkerKind::kBorrowed);
}

std::optional<std::size_t> Placement::least_loaded_sticky(const WorkerColumns& workers,
                                                          const Query& query) const noexcept {
  const std::optional<std::size_t> least = least_loaded(workers, query, std::nullopt);
  const bool stays =
      can_home_take(workers, query) &&
      workers.turns[*query.home] <= kStickyRatioMax * workers.turns[*least] + kStickyTurnsMax;
  return stays ? query.home : least;
}

}  // namespace rose::scheduler
