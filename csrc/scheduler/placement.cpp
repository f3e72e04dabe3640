#include "scheduler/placement.h"

#include <limits>

namespace rose::scheduler {

namespace {

// Turns that a home may have more than another and still keep its own. One that never yields keeps
// whoever rushed to the first workers with new weights; in verl's #7435, too, two of them won.
constexpr double kStickyTurnsMax = 2;

// Prompts that come back after a revocation do so a few at a time, or decodes would starve; one
// alone may always.
bool can_restart(const WorkerColumns& workers, std::size_t slot, const Query& query) noexcept {
  const double under_way = workers.restart_tokens[slot];
  if (query.restart_tokens <= 0 || under_way <= 0) return true;
  const double cached = query.home == slot ? query.hit_tokens : 0;
  return under_way + query.restart_tokens - cached <= query.burst_tokens;
}

bool can_expose(const WorkerColumns& workers, std::size_t slot, const Query& query) noexcept {
  return query.exposures == nullptr || workers.kind[slot] == WorkerKind::kDedicated ||
         query.exposures->can_join(query.job, workers.domain[slot], query.prompt_tokens,
                                   query.is_urgent);
}

bool can_take_but_for_bars(const WorkerColumns& workers, std::size_t slot,
                           const Query& query) noexcept {
  return workers.room_tokens[slot] >= query.need_tokens && workers.job[slot] == query.job &&
         workers.lease_tokens[slot] >= query.most_tokens &&
         workers.version[slot] >= query.version_floor && query.avoid != slot &&
         !(query.is_dedicated_only && workers.kind[slot] == WorkerKind::kBorrowed) &&
         can_restart(workers, slot, query) && can_expose(workers, slot, query);
}

bool can_take(const WorkerColumns& workers, std::size_t slot, const Query& query) noexcept {
  return workers.is_barred[slot] == 0 && can_take_but_for_bars(workers, slot, query);
}

bool can_home_take(const WorkerColumns& workers, const Query& query) noexcept {
  return query.home && can_take(workers, *query.home, query);
}

// The fewest turns among workers of `kind`, or of any.
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

std::optional<std::size_t> Placement::choose(const WorkerColumns& workers, const Query& query) {
  switch (policy_) {
    case Policy::kJoint:
      return joint(workers, query);
    case Policy::kRosePublished:
      return rose_published(workers, query);
    case Policy::kLeastLoadedSticky:
    case Policy::kMlfq:
      return least_loaded_sticky(workers, query);
  }
  return std::nullopt;
}

std::optional<std::size_t> Placement::cheapest(const WorkerColumns& workers,
                                               const Query& query) const noexcept {
  double best_s = std::numeric_limits<double>::infinity();
  std::optional<std::size_t> best;
  for (std::size_t slot = 0; slot < costs_s_.size(); ++slot) {
    // Few are better than all before them, so few are looked at twice.
    if (costs_s_[slot] > best_s || !can_take(workers, slot, query)) continue;
    const bool is_better =
        costs_s_[slot] < best_s || !best || workers.number[slot] < workers.number[*best];
    if (!is_better) continue;
    best_s = costs_s_[slot];
    best = slot;
  }
  return best;
}

std::optional<std::size_t> Placement::joint(const WorkerColumns& workers, const Query& query) {
  scan_costs_s(settings_, workers, query, costs_s_);
  const bool is_warm = query.hit_tokens > 0 && can_home_take(workers, query);
  if (is_warm) {
    costs_s_[*query.home] = cost_s(settings_, workers, *query.home, query, query.hit_tokens);
  }
  const std::optional<std::size_t> best = cheapest(workers, query);
  // A home with a warm cache is left for more than noise only, or turns would wander.
  const bool stays =
      is_warm && best && costs_s_[*query.home] - costs_s_[*best] <= settings_.leave_home_margin_s;
  return stays ? query.home : best;
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
  const bool stays = can_home_take(workers, query) &&
                     workers.turns[*query.home] <= workers.turns[*least] + kStickyTurnsMax;
  return stays ? query.home : least;
}

}  // namespace rose::scheduler
