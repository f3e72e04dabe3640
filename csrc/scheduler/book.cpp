#include "scheduler/book.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "scheduler/mlfq.h"

namespace rose::scheduler {

namespace {

// Range of the ratio of a turn's measured to its predicted duration. A ratio outside this range has
// other causes than the worker's pace, so it is clamped.
constexpr double kPaceMin = 0.25;
constexpr double kPaceMax = 16;
// Longest time that a prompt may take before its worker counts as stalled.
constexpr double kPrefillMaxS = 3600;
// An epoch that no grant has.
constexpr std::int64_t kNoEpoch = -1;

}  // namespace

Book::Book(const Settings& settings_, PlacementPolicy policy_) noexcept
    : settings{settings_},
      policy{policy_},
      jobs{settings_},
      workers{settings_.hazard_per_s},
      risk{settings_},
      fairness{settings_} {}

void Book::begin_step(Nanoseconds now, std::vector<Action>& actions) noexcept {
  now_ns = now;
  actions_ = &actions;
}

void Book::create(const TrajectoryCreated& event) {
  const std::size_t place = jobs.place_of(event.job);
  Job& job = jobs[place];
  Trajectory& trajectory = trajectories.create(event.trajectory, event.group, place);
  trajectory.ticket = job.created++;
  job.waiting[trajectory.ticket] = trajectory.id;
  job.outlook.create(trajectory);
}

void Book::admit(Trajectory& trajectory) {
  Job& job = jobs[trajectory.job];
  job.waiting.erase(trajectory.ticket);
  move(trajectory, TrajectoryState::kEnv);
  trajectory.version_min = job.published;
  trajectory.place_in_line = job.admitted - job.dropped_admitted;
  job.outlook.admit(trajectory, now_ns);
  ++counters.admitted;
  ++job.admitted;
  act(Admit{trajectory.id});
}

void Book::queue(Trajectory& trajectory, const TurnReady& event) {
  trajectory.context_tokens = event.context_tokens;
  trajectory.max_new_tokens = event.max_new_tokens;
  trajectory.known_tokens = 0;
  trajectory.tries = 0;
  trajectory.attempts = 0;
  trajectory.losses = 0;
  trajectory.accepted = {event.version_min, event.version_max};
  trajectory.avoided = {};
  wait_for_worker(trajectory, QueueRank::kFresh);
}

bool Book::is_displaced(const Trajectory& trajectory, std::size_t slot) const noexcept {
  const std::optional<std::size_t> home = workers.find(trajectory.home.worker);
  if (!home || !trajectory.home.is_at(workers[*home])) return false;
  if (!trajectory.home.is_warm(workers[*home])) return true;  // its cache was evicted
  if (home == slot) return false;
  const Share share = workers.share(*home);  // without regard to seats
  return share.kv_tokens - share.used_tokens < reserve_tokens(trajectory);
}

void Book::start(Trajectory& trajectory, std::size_t slot, bool is_urgent) {
  trajectory.was_displaced = trajectory.was_displaced || is_displaced(trajectory, slot);
  leave_queue(trajectory);
  move(trajectory, TrajectoryState::kRunning);
  const bool is_restart = trajectory.tries > 0;
  ++trajectory.tries;
  const Worker& worker = workers[slot];
  const Home& home = trajectory.home;
  const std::int64_t prompt = trajectory.prompt_tokens();
  const std::int64_t cached = home.is_warm(worker) ? std::min(home.cached_tokens, prompt) : 0;
  const std::int64_t seen = std::min(trajectory.computed_tokens, prompt);
  counters.reprefill_tokens += std::max<std::int64_t>(0, seen - cached);
  counters.resumed += trajectory.known_tokens > 0 ? 1 : 0;
  const std::int64_t reserved = reserve_tokens(trajectory);
  const std::int64_t restarted = is_restart ? prompt - cached : 0;
  const CacheId used = cached > 0 ? home.cache : kNoCache;
  if (cached > 0) {
    trajectory.home.cache = kNoCache;
  } else {
    leave_cache(trajectory);
    trajectory.home.grant_epoch = kNoEpoch;  // it has no home until its first report
  }
  const double spare_before = workers.columns().spare_tokens[slot];
  workers.hold(slot, trajectory.id, reserved, prompt - cached, restarted, used);
  // The start may have evicted caches that were larger than the turn's needs.
  has_changed = has_changed || workers.columns().spare_tokens[slot] > spare_before;
  // The backlog includes all turns on the device: the prompts of another job's turns there are
  // computed before this one, too.
  const double prefill_s = std::min(kPrefillMaxS, workers.columns().prefill_s_per_token[slot] *
                                                      workers.columns().backlog_tokens[slot]);
  trajectory.run = {
      .slot = slot,
      .worker = worker.number,
      .kind = worker.kind,
      .grant_epoch = worker.grant.epoch,
      .version = worker.version,
      .prefill_tokens = prompt - cached,
      .stall_at_ns = now_ns + settings.stall_ns + static_cast<Nanoseconds>(prefill_s * kNsPerS),
      .reserved_tokens = reserved,
      .restart_tokens = restarted,
      .started_ns = now_ns,
      .first_token = trajectory.known_tokens,
      .foreseen_wait_s = prefill_s,
      .foreseen_token_s = token_s(slot),
      .is_held = true};
  risk.run(trajectory, worker, is_urgent);
  fairness.serve(jobs, worker, trajectory.need_tokens());
  if (worker.kind == WorkerKind::kBorrowed) {
    stall_check_ns = std::min(stall_check_ns, trajectory.run.stall_at_ns);
  }
  act(Start{trajectory.id, trajectory.turn, worker.number, worker.grant.epoch,
            trajectory.known_tokens, trajectory.max_new_tokens - trajectory.known_tokens});
}

void Book::deliver(Trajectory& trajectory, std::int64_t event, std::int64_t skip,
                   std::int64_t tokens) {
  act(Deliver{trajectory.id, trajectory.turn, event, skip, tokens});
  trajectory.known_tokens += tokens;
  trajectory.said_tokens += tokens;
  trajectory.losses = 0;
  counters.tokens_delivered += tokens;
  if (trajectory.run.is_held) risk.grow(trajectory, tokens);
  const Run& run = trajectory.run;
  trajectory.home = {run.worker, run.grant_epoch, run.version, trajectory.prompt_tokens(),
                     kNoCache};
  trajectory.computed_tokens = std::max(trajectory.computed_tokens, trajectory.prompt_tokens());
}

double Book::token_s(std::size_t slot) const noexcept {
  const WorkerColumns& columns = workers.columns();
  return columns.step_s[slot] + columns.step_s_per_sequence[slot] * columns.turns[slot] +
         columns.step_s_per_context_token[slot] * columns.context_tokens[slot];
}

void Book::note_pace(const Trajectory& trajectory) noexcept {
  const Run& run = trajectory.run;
  const auto generated = static_cast<double>(trajectory.known_tokens - run.first_token);
  if (!run.is_held || generated <= 0) return;
  const double foreseen_s = run.foreseen_wait_s + generated * run.foreseen_token_s;
  const double took_s = static_cast<double>(now_ns - run.started_ns) / kNsPerS;
  workers.observe_pace(run.slot, std::clamp(took_s, kPaceMin * foreseen_s, kPaceMax * foreseen_s),
                       foreseen_s, settings.pace_rate);
}

void Book::note_progress(Trajectory& trajectory) {
  Run& run = trajectory.run;
  run.stall_at_ns = now_ns + settings.stall_ns;
  if (run.is_held) compute(run);
}

void Book::compute(Run& run) noexcept {
  if (run.prefill_tokens > 0) workers.compute(run.slot, run.prefill_tokens, run.restart_tokens);
  has_changed = has_changed || run.restart_tokens > 0;  // another turn may restart there
  run.prefill_tokens = 0;
  run.restart_tokens = 0;
}

bool Book::extend(Trajectory& trajectory) {
  Run& run = trajectory.run;
  const std::int64_t ahead = settings.reserve_ahead_tokens;
  const std::int64_t most = trajectory.need_tokens();
  if (!run.is_held || std::min(trajectory.prompt_tokens() + ahead, most) <= run.reserved_tokens) {
    return false;
  }
  // Reserve twice as far ahead, because otherwise the turn's next report would reserve again.
  const Outlook& outlook = jobs[trajectory.job].outlook;
  const std::int64_t reserved = outlook.reserve_tokens(trajectory, 2 * ahead);
  const double spare_before = workers.columns().spare_tokens[run.slot];
  workers.grow(run.slot, reserved - run.reserved_tokens);
  has_changed = has_changed || workers.columns().spare_tokens[run.slot] > spare_before;
  run.reserved_tokens = reserved;
  return true;
}

void Book::recall(Trajectory& trajectory) {
  stop(trajectory);
  ++counters.recalls;
  move(trajectory, TrajectoryState::kRecalled);
  trajectory.awaited_tokens = kTokensUnknown;
  begin_grace(trajectory);
}

void Book::await_rest(Trajectory& trajectory, TurnEnd end, std::int64_t tokens) {
  release(trajectory);
  trajectory.awaited_tokens = tokens;
  trajectory.awaited_end = end;
  if (trajectory.state == TrajectoryState::kRecalled) return;  // its grace period has already begun
  move(trajectory, TrajectoryState::kRecalled);
  begin_grace(trajectory);
}

void Book::requeue(Trajectory& trajectory) {
  if (trajectory.known_tokens == trajectory.max_new_tokens) {
    finish(trajectory);  // all its tokens have arrived; only the report of its end was lost
    return;
  }
  release(trajectory);
  keep_cache(trajectory);
  const Run& run = trajectory.run;
  trajectory.avoided = {run.worker, run.grant_epoch, now_ns + settings.retry_ns};
  wait_for_worker(trajectory, QueueRank::kResumed);
}

void Book::finish(Trajectory& trajectory) {
  note_pace(trajectory);
  release(trajectory);
  keep_cache(trajectory);
  jobs[trajectory.job].outlook.finish(trajectory, now_ns);
  ++counters.turns[static_cast<std::size_t>(trajectory.run.kind)];
  move(trajectory, TrajectoryState::kEnv);
  act(TurnDone{trajectory.id, trajectory.turn});
  ++trajectory.turn;
}

void Book::cut(Trajectory& trajectory, std::int64_t tokens) {
  if (trajectory.state == TrajectoryState::kRunning) stop(trajectory);
  if (trajectory.state == TrajectoryState::kQueued) {
    leave_queue(trajectory);
    has_changed = true;  // room may have been kept for this turn
  }
  trajectory.said_tokens -= trajectory.known_tokens - tokens;
  trajectory.known_tokens = tokens;
  finish(trajectory);
}

void Book::fail(Trajectory& trajectory) {
  if (++trajectory.attempts < settings.attempts_max) {
    requeue(trajectory);
  } else {
    drop(trajectory, DropReason::kFailed);
  }
}

void Book::end(Trajectory& trajectory) {
  ++counters.done;
  leave_cache(trajectory);
  ++jobs[trajectory.job].done;
  jobs[trajectory.job].outlook.over(trajectory, true);
  move(trajectory, TrajectoryState::kDone);
}

void Book::drop(Trajectory& trajectory, DropReason reason) {
  if (trajectory.state == TrajectoryState::kRunning) stop(trajectory);
  if (trajectory.state == TrajectoryState::kQueued) {
    leave_queue(trajectory);
    has_changed = true;  // room may have been kept for this turn
  }
  release(trajectory);
  leave_cache(trajectory);
  ++counters.dropped;
  Job& job = jobs[trajectory.job];
  job.outlook.over(trajectory, false);
  ++job.dropped;
  const bool was_waiting = trajectory.state == TrajectoryState::kWaiting;
  if (was_waiting) job.waiting.erase(trajectory.ticket);
  job.dropped_admitted += was_waiting ? 0 : 1;
  act(Drop{trajectory.id, reason});
  move(trajectory, TrajectoryState::kDropped);
}

void Book::stop(const Trajectory& trajectory) {
  act(Stop{trajectory.id, trajectory.run.worker, trajectory.run.grant_epoch});
}

void Book::set_grant(std::size_t slot, const GrantChanged& event) {
  const CapacityGrant& grant = workers[slot].grant;
  const bool is_same = grant.is_live && grant.epoch == event.grant_epoch;
  has_changed = true;
  if (is_same && event.kv_tokens > 0) {
    const Share was = workers.share(slot);
    workers.set_grant(slot, event, now_ns);
    risk.go_on(workers, slot, was, now_ns);
    return;
  }
  end_grant(slot);
  if (is_same) return;
  workers.set_grant(slot, event, now_ns);
  if (event.kv_tokens > 0) {
    risk.begin(workers, slot, now_ns);
  } else {
    workers.end_grant(slot);  // the grant ends before it began
  }
}

void Book::end_grant(std::size_t slot, bool is_revoked) {
  if (workers[slot].grant.is_live) risk.end(workers, slot, now_ns, is_revoked);
  has_changed = true;  // other workers on its device may have room now
  for (const TrajectoryId id : workers.end_grant(slot)) {
    Trajectory* const trajectory = trajectories.find(id);
    if (trajectory == nullptr) continue;
    risk.leave(*trajectory);
    trajectory->run.is_held = false;
    if (trajectory->state == TrajectoryState::kRunning) recall(*trajectory);
  }
}

void Book::drain(std::size_t slot) {
  workers.drain(slot);
  end_grant(slot, false);
}

void Book::recall_misfits(std::size_t slot) {
  const std::int64_t version = workers[slot].version;
  for (const TrajectoryId id : workers[slot].held) {
    Trajectory* const trajectory = trajectories.find(id);
    if (trajectory == nullptr || trajectory->state != TrajectoryState::kRunning) continue;
    if (!trajectory->accepted.has(version)) recall(*trajectory);
  }
}

void Book::pause(bool is_recalling) {
  is_paused = true;
  if (!is_recalling) return;
  for (std::size_t slot = 0; slot < workers.size(); ++slot) {
    for (const TrajectoryId id : workers[slot].held) {
      Trajectory* const trajectory = trajectories.find(id);
      if (trajectory == nullptr || trajectory->state != TrajectoryState::kRunning) continue;
      recall(*trajectory);
    }
  }
}

void Book::resume() noexcept {
  is_paused = false;
  has_changed = true;
}

void Book::drop_outdated() {
  if (expiring_.empty() || !has_changed) return;
  std::vector<std::int64_t> oldest(jobs.size(), kCountMax);
  for (std::size_t slot = 0; slot < workers.size(); ++slot) {
    const Worker& worker = workers[slot];
    if (worker.number == kNobody || worker.is_draining) continue;
    oldest[worker.job] = std::min(oldest[worker.job], worker.version);
  }
  const std::set<TrajectoryId> expiring = expiring_;
  for (const TrajectoryId id : expiring) {
    Trajectory& trajectory = *trajectories.find(id);
    const std::int64_t version = oldest[trajectory.job];
    // kCountMax: the job has no worker.
    if (version < kCountMax && version > trajectory.accepted.max) {
      drop(trajectory, DropReason::kVersion);
    }
  }
}

void Book::lose(std::size_t slot, bool is_crash) {
  if (workers[slot].grant.is_live) risk.end(workers, slot, now_ns);
  has_changed = true;
  for (const TrajectoryId id : workers.end_grant(slot)) {
    Trajectory* const trajectory = trajectories.find(id);
    if (trajectory == nullptr) continue;
    risk.leave(*trajectory);
    trajectory->run.is_held = false;
    const bool is_suspect = is_crash && trajectory->state == TrajectoryState::kRunning &&
                            trajectory->known_tokens == trajectory->run.first_token;
    if (is_suspect) ++trajectory->losses;
    if (trajectory->losses >= settings.losses_max) {
      drop(*trajectory, DropReason::kLost);
    } else {
      requeue(*trajectory);  // no further output will be accepted
    }
  }
  workers.leave(slot);
}

std::vector<TrajectoryId> Book::take_overdue() {
  std::vector<TrajectoryId> overdue;
  while (!graces_.empty() && graces_.front().until_ns <= now_ns) {
    const Grace grace = graces_.front();
    graces_.pop_front();
    const Trajectory* const trajectory = trajectories.find(grace.trajectory);
    const bool is_waiting = trajectory != nullptr &&
                            trajectory->state == TrajectoryState::kRecalled &&
                            trajectory->recalled_until_ns == grace.until_ns;
    if (is_waiting) overdue.push_back(grace.trajectory);
  }
  return overdue;
}

bool Book::is_in_bounds() {
  const std::size_t domains = risk.exposures.domains();
  const auto is_trajectory = [&](const Trajectory& each) {
    const bool is_waiting = each.state == TrajectoryState::kWaiting;
    return each.job < jobs.size() &&
           (is_waiting || jobs[each.job].outlook.has_life(each.life_number)) &&
           (!each.run.is_held || (each.run.slot < workers.size() && each.run.domain < domains));
  };
  const auto is_queued = [&](const QueueKey& key) {
    return key.job < jobs.size() && trajectories.find(key.trajectory) != nullptr;
  };
  const auto has_all = [&](const auto& waiting) {
    return std::all_of(waiting.begin(), waiting.end(), [&](const auto& entry) {
      return trajectories.find(entry.second) != nullptr;
    });
  };
  for (std::size_t job = 0; job < jobs.size(); ++job) {
    if (!has_all(jobs[job].waiting)) return false;
  }
  return jobs.is_in_bounds() && risk.exposures.is_in_bounds() &&
         workers.is_in_bounds(jobs.size(), domains) && trajectories.all(is_trajectory) &&
         std::all_of(turns.begin(), turns.end(), is_queued) &&
         std::all_of(expiring_.begin(), expiring_.end(),
                     [&](TrajectoryId id) { return trajectories.find(id) != nullptr; });
}

std::int64_t Book::live_max(std::size_t place) const noexcept {
  const Job& job = jobs[place];
  if (policy != PlacementPolicy::kJoint || settings.displaced_share >= 1) return kCountMax;
  const double fit = job.outlook.live_max(workers.lent_tokens(place));
  // Without capacity or a known length, `fit` is infinite or NaN, and there is no limit.
  if (!(fit < static_cast<double>(kCountMax))) return kCountMax;
  // If no turn waits or runs, memory does not limit admission. Otherwise trajectories whose tools
  // never return could block all others.
  const bool has_turns = !job.wants.empty() || workers.has_turns(place);
  const std::int64_t least = has_turns ? 0 : job.outlook.live() + 1;
  return std::max(least, static_cast<std::int64_t>(std::llround(fit)));
}

double Book::lag(const Trajectory& trajectory) const {
  const Job& job = jobs[trajectory.job];
  const double by_version = static_cast<double>(job.published - trajectory.version_min) /
                            static_cast<double>(job.max_staleness + 1);
  return std::clamp(std::max(job.outlook.lag(trajectory, now_ns), by_version), 0.0, 1.0);
}

bool Book::is_tail(std::size_t place) const noexcept {
  const Job& job = jobs[place];
  // Trajectories that only wait for memory will start soon, so they count as live here.
  const std::size_t held_back = job.can_admit() ? job.waiting.size() : 0;
  const auto live = static_cast<double>(job.outlook.live()) + static_cast<double>(held_back);
  return settings.tail_seats * live < static_cast<double>(workers.free_seats(place));
}

Freshness Book::freshness(const Trajectory& trajectory) const noexcept {
  const Job& job = jobs[trajectory.job];
  // Without this trajectory the trainer cannot fill its next batch, so the trainer waits for it.
  if (job.could_be_ahead() <= job.batch_trajectories) return Freshness::kSafe;
  const std::int64_t versions_left = trajectory.version_min + job.max_staleness - job.published;
  return job.outlook.freshness(trajectory, versions_left, now_ns);
}

std::int64_t Book::version_floor(const Trajectory& trajectory) const noexcept {
  const Job& job = jobs[trajectory.job];
  const std::int64_t lagging = version_floor(trajectory.job);
  const std::int64_t oldest = job.oldest_version(trajectory.place_in_line);
  // A trajectory that is already too old gains nothing from waiting for newer weights.
  if (trajectory.version_min < oldest) return lagging;
  return std::max(lagging, oldest);
}

void Book::move(Trajectory& trajectory, TrajectoryState to) {
  if (!trajectories.move(trajectory, to, now_ns)) {  // `trajectory` may be gone now
    fault = "a trajectory would make a move outside its table of moves";
  }
}

void Book::wait_for_worker(Trajectory& trajectory, QueueRank rank) {
  move(trajectory, TrajectoryState::kQueued);
  jobs[trajectory.job].outlook.queue(trajectory, now_ns);
  trajectory.queue_key = queue_key(trajectory, rank);
  trajectory.queued_ns = now_ns;
  turns.push(trajectory.queue_key, now_ns);
  if (trajectory.accepted.max < kCountMax) expiring_.insert(trajectory.id);
  if (trajectory.accepted.has_all()) {
    jobs[trajectory.job].want(trajectory.need_tokens(), trajectory.place_in_line);
  }
  has_changed = true;
}

QueueKey Book::queue_key(const Trajectory& trajectory, QueueRank rank) const {
  if (policy == PlacementPolicy::kMlfq) {
    return mlfq_key(trajectory, rank, settings.mlfq_quantum_tokens, now_ns);
  }
  return {.rank = rank,
          .level = 0,
          .order_ns = jobs[trajectory.job].outlook.order_ns(trajectory, now_ns),
          .trajectory = trajectory.id,
          .job = trajectory.job};
}

void Book::leave_queue(Trajectory& trajectory) {
  turns.remove(trajectory.queue_key, trajectory.queued_ns);
  expiring_.erase(trajectory.id);
  if (trajectory.accepted.has_all()) {
    jobs[trajectory.job].want_no_more(trajectory.need_tokens(), trajectory.place_in_line);
  }
}

void Book::release(Trajectory& trajectory) noexcept {
  Run& run = trajectory.run;
  if (!run.is_held) return;
  compute(run);
  risk.leave(trajectory);
  workers.release(run.slot, trajectory.id, run.reserved_tokens);
  run.is_held = false;
  has_changed = true;
}

void Book::keep_cache(Trajectory& trajectory) {
  Home& home = trajectory.home;
  if (home.cache != kNoCache) return;
  const auto slot = workers.find(home.worker);
  const bool is_there = slot && home.is_at(workers[*slot]);
  home.cache = is_there ? workers.keep(*slot, home.cached_tokens) : kForgotten;
  has_changed = true;  // other caches may have been evicted for this one
}

void Book::leave_cache(const Trajectory& trajectory) noexcept {
  const Home& home = trajectory.home;
  const auto slot = workers.find(home.worker);
  if (home.cache == kNoCache || !slot || !home.is_warm(workers[*slot])) return;
  workers.remove_cache(*slot, home.cache);
  has_changed = true;  // another turn may use the memory
}

void Book::begin_grace(Trajectory& trajectory) {
  trajectory.recalled_until_ns = now_ns + settings.recall_grace_ns;
  graces_.push_back({trajectory.recalled_until_ns, trajectory.id});
}

}  // namespace rose::scheduler
