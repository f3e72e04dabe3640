#include "scheduler/placement.h"

#include <algorithm>
#include <limits>

namespace rose::scheduler {

namespace {

constexpr double kNotThere = std::numeric_limits<double>::infinity();

bool can_take(const WorkerColumns& workers, std::size_t slot, const Query& query) noexcept {
  return workers.room_tokens[slot] >= query.need_tokens &&
         workers.version[slot] >= query.version_floor && query.avoid != slot;
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

// Seconds; see the class.
inline double cost_of(const Settings& settings, const WorkerColumns& workers, std::size_t slot,
                      const Query& query, double cached_tokens) noexcept {
  const double turns = workers.turns[slot];
  const double prefill_s_per_token = workers.prefill_s_per_token[slot];
  const double missing_tokens = query.prompt_tokens - cached_tokens;
  const double step_s = workers.step_s[slot] + workers.step_s_per_sequence[slot] * (turns + 1);
  const double own_s = (workers.backlog_tokens[slot] + missing_tokens) * prefill_s_per_token +
                       query.expected_tokens * step_s;
  const double others_s = turns * (workers.step_s_per_sequence[slot] * query.expected_tokens +
                                   missing_tokens * prefill_s_per_token);
  // x / (1 + x) for 1 - exp(-x): the same at both ends, and a scan has no time for exp.
  const double revocations = workers.hazard_per_s[slot] * own_s;
  const double redo_s = query.prompt_tokens * prefill_s_per_token + settings.requeue_s;
  const double risk_s = revocations / (1 + revocations) * redo_s;
  const double gap = std::max(0.0, query.published - workers.version[slot]);
  return (1 + settings.urgent_time_weight * query.urgency) * own_s +
         (1 - query.urgency) * others_s +
         (1 + settings.urgent_risk_weight * query.urgency) * risk_s +
         settings.staleness_s_per_version * gap;
}

std::optional<std::size_t> cheapest(const std::vector<double>& costs_s,
                                    const std::vector<WorkerId>& number) noexcept {
  double best_s = kNotThere;
  std::size_t best = 0;
  for (std::size_t slot = 0; slot < costs_s.size(); ++slot) {
    if (costs_s[slot] > best_s) continue;
    if (costs_s[slot] == best_s && !(number[slot] < number[best])) continue;
    best_s = costs_s[slot];
    best = slot;
  }
  return best_s < kNotThere ? std::optional{best} : std::nullopt;
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

std::optional<std::size_t> Placement::joint(const WorkerColumns& workers, const Query& query) {
  costs_s_.resize(workers.size());
  for (std::size_t slot = 0; slot < workers.size(); ++slot) {
    // No branch: the loop takes several workers at once.
    const bool can = (workers.room_tokens[slot] >= query.need_tokens) &
                     (workers.version[slot] >= query.version_floor);
    const double cost = cost_of(settings_, workers, slot, query, 0);
    costs_s_[slot] = can ? cost : kNotThere;
  }
  const bool is_home = can_home_take(workers, query);
  if (is_home) {
    costs_s_[*query.home] = cost_of(settings_, workers, *query.home, query, query.hit_tokens);
  }
  if (query.avoid) costs_s_[*query.avoid] = kNotThere;
  const std::optional<std::size_t> best = cheapest(costs_s_, workers.number);
  // A home with a warm cache is left for more than noise only, or turns would wander.
  const bool stays = is_home && query.hit_tokens > 0 && best &&
                     costs_s_[*query.home] - costs_s_[*best] <= settings_.leave_home_margin_s;
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
