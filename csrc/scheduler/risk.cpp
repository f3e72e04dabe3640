#include "scheduler/risk.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace rose::scheduler {

namespace {

// Smallest relative change of an estimate for which the columns are updated.
constexpr double kMaterial = 1.0 / 16;

bool differs(double now, double shown) noexcept {
  return std::abs(now - shown) > kMaterial * shown;
}

// The needs of one job after a revocation, and its resources.
struct Recovery {
  double borrowed_tokens{0};
  double borrowed_needs{0};
  double longest_prompt{0};
  double most_left{0};
  double backlog_tokens{0};
  double prefill_tokens_per_s{0};
  double slowest_s_per_token{0};
  double room_tokens{0};
  double capacity_tokens{0};
  double borrowed_turns{0};
  double free_seats{0};
  double seats{0};
  double slowest_step_s{0};

  void add_dedicated(const Worker& worker, const WorkerColumns& columns, std::size_t slot) {
    const double prefill_s = columns.prefill_s_per_token[slot];
    backlog_tokens += static_cast<double>(worker.backlog_tokens);
    prefill_tokens_per_s += 1 / prefill_s;
    slowest_s_per_token = std::max(slowest_s_per_token, prefill_s);
    room_tokens += std::max(0.0, columns.room_tokens[slot]);
    capacity_tokens += static_cast<double>(worker.grant.kv_tokens);
    const double full = static_cast<double>(worker.seats);
    seats += full;
    free_seats += std::max(0.0, full - static_cast<double>(worker.held.size()));
    const double context_s =
        static_cast<double>(worker.grant.kv_tokens) * columns.step_s_per_context_token[slot];
    slowest_step_s =
        std::max(slowest_step_s,
                 columns.step_s[slot] + full * columns.step_s_per_sequence[slot] + context_s);
  }
  void add_turn(const Trajectory& turn, bool is_borrowed) {
    const double left = static_cast<double>(turn.max_new_tokens - turn.known_tokens);
    most_left = std::max(most_left, left);
    if (!is_borrowed) return;
    const double prompt = static_cast<double>(turn.prompt_tokens());
    borrowed_tokens += prompt;
    borrowed_needs += static_cast<double>(turn.need_tokens());
    borrowed_turns += 1;
    longest_prompt = std::max(longest_prompt, prompt);
  }
  double seconds() const noexcept {
    if (borrowed_needs <= 0) return 0;
    if (prefill_tokens_per_s <= 0) return std::numeric_limits<double>::infinity();
    const double prefill_s = (borrowed_tokens + backlog_tokens) / prefill_tokens_per_s +
                             longest_prompt * slowest_s_per_token;
    const bool has_room = borrowed_needs <= room_tokens;
    const bool has_seats = borrowed_turns <= free_seats;
    if (has_room && has_seats) return prefill_s;
    // A turn that ends on a full worker frees room for another turn of its size, so each round
    // fills all tokens or all seats of a worker.
    const double of_tokens =
        has_room ? 0 : std::ceil(borrowed_needs / std::max(1.0, capacity_tokens));
    const double of_seats = has_seats ? 0 : std::ceil(borrowed_turns / std::max(1.0, seats));
    return prefill_s + (1 + of_tokens + of_seats) * most_left * slowest_step_s;
  }
};

}  // namespace

void Risk::begin(WorkerTable& workers, std::size_t slot, Nanoseconds now_ns) {
  const Worker& worker = workers[slot];
  exposures.add(worker.job, worker.domain, speed_of(worker));
  if (worker.kind != WorkerKind::kBorrowed) return;
  hazards_.begin(worker.number, worker.domain, now_ns);
  workers.hold_off(slot, hazards_.hold_until_ns(worker.number, now_ns), now_ns);
  show(workers, slot);
}

void Risk::go_on(WorkerTable& workers, std::size_t slot, const Share& was, Nanoseconds now_ns) {
  const Worker& worker = workers[slot];
  const std::int64_t grant_tokens = worker.grant.kv_tokens;
  if (worker.kind != WorkerKind::kBorrowed) return;
  const bool is_revoked = grant_tokens < was.used_tokens || 2 * grant_tokens < was.kv_tokens;
  if (is_revoked) {
    revoke(workers, slot, now_ns);
    workers.hold_off(slot, hazards_.hold_until_ns(worker.number, now_ns), now_ns);
  } else {
    hazards_.expose(worker.number, worker.domain, now_ns);
  }
  is_dirty_ = true;
  show(workers, slot);
}

void Risk::measure(WorkerTable& workers, std::size_t slot, const WorkerMeasured& event) {
  const Worker& worker = workers[slot];
  const bool counts = worker.grant.is_live;
  if (counts) exposures.remove(worker.job, worker.domain, speed_of(worker));
  workers.measure(slot, event);
  if (counts) exposures.add(worker.job, worker.domain, speed_of(worker));
}

void Risk::end(WorkerTable& workers, std::size_t slot, Nanoseconds now_ns, bool is_revoked) {
  const Worker& worker = workers[slot];
  exposures.remove(worker.job, worker.domain, speed_of(worker));
  if (worker.kind != WorkerKind::kBorrowed) return;
  if (is_revoked) revoke(workers, slot, now_ns);
  hazards_.end(worker.number);
}

void Risk::revoke(WorkerTable& workers, std::size_t slot, Nanoseconds now_ns) {
  hazards_.revoke(workers[slot].number, workers[slot].domain, now_ns);
  is_dirty_ = true;
}

void Risk::settle(WorkerTable& workers) {
  if (!is_dirty_) return;
  is_dirty_ = false;
  const std::size_t domains = exposures.domains();
  shown_per_s_.resize(domains, 0);
  std::vector<bool> has_moved(domains);
  bool has_any = false;
  for (std::size_t domain = 0; domain < domains; ++domain) {
    const double per_s = hazards_.domain_per_s(domain);
    if (!differs(per_s, shown_per_s_[domain])) continue;
    shown_per_s_[domain] = per_s;
    has_moved[domain] = has_any = true;
  }
  if (!has_any) return;
  for (std::size_t slot = 0; slot < workers.size(); ++slot) {
    const Worker& worker = workers[slot];
    const bool is_one = worker.number != kNobody && worker.kind == WorkerKind::kBorrowed;
    if (is_one && has_moved[worker.domain]) show(workers, slot);
  }
}

void Risk::show(WorkerTable& workers, std::size_t slot) {
  const Worker& worker = workers[slot];
  const double per_s = hazards_.per_s(worker.number, worker.domain);
  if (differs(per_s, workers.columns().hazard_per_s[slot])) workers.set_hazard(slot, per_s);
}

void Risk::run(Trajectory& trajectory, const Worker& worker, bool is_urgent) {
  Run& run = trajectory.run;
  run.domain = worker.domain;
  run.exposed = {.tokens = trajectory.prompt_tokens(), .urgent = is_urgent ? 1 : 0};
  exposures.add(trajectory.job, run.domain, run.exposed);
}

void Risk::grow(Trajectory& trajectory, std::int64_t tokens) {
  Run& run = trajectory.run;
  run.exposed.tokens += tokens;
  exposures.add(trajectory.job, run.domain, {.tokens = tokens});
}

void Risk::leave(Trajectory& trajectory) {
  Run& run = trajectory.run;
  exposures.remove(trajectory.job, run.domain, run.exposed);
  run.exposed = {};
}

double Risk::exposure_s(std::size_t jobs) const noexcept {
  double most = 0;
  for (std::size_t job = 0; job < jobs; ++job) {
    for (std::size_t domain = 0; domain < exposures.domains(); ++domain) {
      most = std::max(most, exposures.seconds(job, domain));
    }
  }
  return most;
}

Exposed Risk::speed_of(const Worker& worker) const noexcept {
  return {.prefill_tokens_per_s = worker.prefill_tokens_per_s};
}

double recovery_bound_s(const WorkerTable& workers, const TrajectoryTable& trajectories,
                        std::size_t jobs, const Settings& settings) {
  std::vector<Recovery> recoveries(jobs);
  for (std::size_t slot = 0; slot < workers.size(); ++slot) {
    const Worker& worker = workers[slot];
    if (worker.number == kNobody || !worker.grant.is_live) continue;
    Recovery& recovery = recoveries[worker.job];
    const bool is_borrowed = worker.kind == WorkerKind::kBorrowed;
    if (!is_borrowed) recovery.add_dedicated(worker, workers.columns(), slot);
    for (const TrajectoryId id : worker.held) {
      const Trajectory* const turn = trajectories.find(id);
      if (turn != nullptr) recovery.add_turn(*turn, is_borrowed);
    }
  }
  double most = 0;
  for (const Recovery& recovery : recoveries) most = std::max(most, recovery.seconds());
  return most > 0 ? most + static_cast<double>(settings.recall_grace_ns) / kNsPerS : 0;
}

}  // namespace rose::scheduler
