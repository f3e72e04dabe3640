#include "scheduler/placement.h"

#include <limits>

namespace rose::scheduler {

namespace {

bool can_take(const WorkerColumns& workers, std::size_t slot, const Query& query) noexcept {
  return workers.room_tokens[slot] >= query.need_tokens && workers.job[slot] == query.job &&
         workers.lease_tokens[slot] >= query.most_tokens &&
         workers.version[slot] >= query.version_floor && query.avoid != slot &&
         !(query.is_dedicated_only && workers.kind[slot] == WorkerKind::kBorrowed);
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

std::optional<std::size_t> Placement::choose(const WorkerColumns& workers, const Query& query) {
  switch (policy_) {
    case Policy::kJoint:
      return joint(workers, query);
    case Policy::kRosePublished:
      return rose_published(workers, query);
    case Policy::kLeastLoadedSticky:
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
  if (can_home_take(workers, query)) return query.home;
  return least_loaded(workers, query, std::nullopt);
}

}  // namespace rose::scheduler
