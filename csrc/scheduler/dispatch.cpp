#include "scheduler/dispatch.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

namespace rose::scheduler {

namespace {

// Number under which a rescue reserves promised room; no trajectory has this number.
constexpr TrajectoryId kPromise = -1;
// Maximum number of remembered failures. With them, turns that need at least as much are skipped.
constexpr std::size_t kFailuresMax = 8;

}  // namespace

void Dispatch::place() {
  TurnQueue& turns = book_.turns;
  if (book_.is_paused || turns.is_empty() || (!book_.has_changed && book_.now_ns < place_at_ns_))
    return;
  book_.has_changed = false;
  place_at_ns_ = kNever;
  turns.starve(book_.now_ns - book_.settings.wait_max_ns);
  look_over_workers();
  // While turns are placed, room only shrinks. So a job's turn that is as large as a failed one
  // finds no room either.
  limits_.assign(book_.jobs.size(), std::numeric_limits<double>::infinity());
  jobs_left_ = book_.jobs.size();
  failures_.clear();
  if (Fairness::is_needed(book_.workers)) {
    place_fairly();
  } else {
    place_in_order();
  }
  for (const std::size_t slot : kept_) book_.workers.show(slot);
  kept_.clear();
}

void Dispatch::place_in_order() {
  const Place end = book_.turns.end();
  std::array<QueueKey, kPrefetch> keys;  // start() removes one of them from the queue, and no other
  for (Place place = book_.turns.begin(); place != end && jobs_left_ > 0;) {
    std::size_t count = 0;
    while (place != end && count < keys.size()) keys[count++] = *place++;
    if (count == keys.size()) {
      for (const QueueKey& key : keys) book_.trajectories.prefetch(key.trajectory);
    }
    for (std::size_t i = 0; i < count && jobs_left_ > 0; ++i) try_start(keys[i]);
  }
}

void Dispatch::place_fairly() {
  book_.fairness.refresh(book_.jobs, book_.workers);
  least_wants_.assign(book_.jobs.size(), -1);
  cursors_.clear();
  for (std::size_t job = 0; job < book_.jobs.size(); ++job) {
    cursors_.push_back({.next = skip_to(book_.turns.begin(), job)});
  }
  while (jobs_left_ > 0) {
    Cursor* const cursor = first_cursor();
    if (cursor == nullptr) return;
    const QueueKey key = *cursor->next;
    const Place after = skip_to(std::next(cursor->next), key.job);
    const std::int64_t starts = starts_;
    cursor->waits = !try_start(key);
    if (cursor->waits) continue;
    cursor->next = after;
    // After a start, jobs that waited may no longer be too far ahead.
    if (starts_ == starts) continue;
    for (Cursor& other : cursors_) other.waits = false;
  }
}

Dispatch::Cursor* Dispatch::first_cursor() noexcept {
  const Place end = book_.turns.end();
  const auto first = [&]() -> Cursor* {
    Cursor* best = nullptr;
    for (Cursor& cursor : cursors_) {
      if (cursor.next == end || cursor.waits) continue;
      if (best == nullptr || *cursor.next < *best->next) best = &cursor;
    }
    return best;
  };
  if (Cursor* const found = first()) return found;
  // All remaining jobs wait for one another, so their next turns are skipped for smaller ones.
  for (Cursor& cursor : cursors_) {
    if (cursor.next != end) cursor.next = skip_to(std::next(cursor.next), cursor.next->job);
    cursor.waits = false;
  }
  return first();
}

Dispatch::Place Dispatch::skip_to(Place place, std::size_t job) const noexcept {
  while (place != book_.turns.end() && place->job != job) ++place;
  return place;
}

bool Dispatch::try_start(const QueueKey& key) {
  Trajectory& trajectory = *book_.trajectories.find(key.trajectory);
  double& limit = limits_[trajectory.job];
  if (static_cast<double>(book_.reserve_tokens(trajectory)) > limit) return true;
  Query query = query_of(trajectory, key.rank == QueueRank::kStarved);
  if (is_hopeless(query)) {
    wait(trajectory, query, key.rank);
    return true;
  }
  if (const auto slot = placement_.choose(book_.workers, query)) {
    book_.start(trajectory, *slot, query.is_urgent);
    ++starts_;
    // The start may have removed the turn's cache from a worker that is kept for a starved turn.
    // This made that worker's room visible again.
    for (const std::size_t kept : kept_) book_.workers.hide(kept);
    refresh_bars(*slot);
    return true;
  }
  if (const double wait_s = placement_.wait_s(); wait_s > 0) {
    // Rounded up, so that a worker that has not committed by then counts as late.
    const auto wait_ns = static_cast<Nanoseconds>(std::llround(wait_s * kNsPerS));
    place_at_ns_ = std::min(place_at_ns_, book_.now_ns + 1 + wait_ns);
    return true;
  }
  query.prefers_dedicated = false;  // choose() has tried the borrowed workers too
  wait(trajectory, query, key.rank);
  if (is_barred_only(query)) return false;
  if (key.rank == QueueRank::kStarved && !is_stopped_by_caches(query)) keep_for(query);
  note_failure(query);
  const bool was_full = limit < 1;
  limit = std::min(limit, room_max(query));
  if (limit < 1 && !was_full) --jobs_left_;  // every turn takes at least one token
  return true;
}

void Dispatch::wait(const Trajectory& trajectory, const Query& query, QueueRank rank) noexcept {
  const auto look_again = [&](Nanoseconds at_ns) { place_at_ns_ = std::min(place_at_ns_, at_ns); };
  if (query.avoid) look_again(trajectory.avoided.until_ns);
  if (query.spares_caches) look_again(trajectory.queued_ns + book_.settings.cache_wait_ns);
  if (rank != QueueRank::kStarved) look_again(trajectory.queued_ns + book_.settings.wait_max_ns);
}

bool Dispatch::is_barred_only(const Query& query) const noexcept {
  const WorkerColumns& columns = book_.workers.columns();
  for (const auto& [device, slots] : book_.workers.devices()) {
    for (const std::size_t slot : slots) {
      const bool is_barred = columns.is_barred[slot] != 0;
      if (is_barred && Placement::could_if_not_barred(columns, slot, query)) return true;
    }
  }
  return false;
}

bool Dispatch::is_stopped_by_caches(Query query) {
  if (!std::exchange(query.spares_caches, false)) return false;
  return placement_.choose(book_.workers, query).has_value();
}

void Dispatch::refresh_bars(std::size_t slot) {
  if (!Fairness::is_needed(book_.workers)) return;
  const Worker& worker = book_.workers[slot];
  const auto& wants = book_.jobs[worker.job].wants;
  const std::int64_t least = wants.empty() ? kCountMax : wants.begin()->first;
  // If the smallest need of a job has changed, the job may be backlogged on other devices than
  // before.
  if (std::exchange(least_wants_[worker.job], least) != least) {
    book_.fairness.refresh(book_.jobs, book_.workers);
  } else {
    book_.fairness.refresh(book_.jobs, book_.workers, worker.device);
  }
}

bool Dispatch::is_hopeless(const Query& query) const noexcept {
  if (query.hit_tokens > 0) return false;
  return std::any_of(failures_.begin(), failures_.end(), [&](const Failure& failed) {
    return query.job == failed.job && query.need_tokens >= failed.need_tokens &&
           query.most_tokens >= failed.most_tokens && query.prompt_tokens >= failed.prompt_tokens &&
           query.version_floor >= failed.version_floor &&
           query.version_ceiling <= failed.version_ceiling &&
           (query.is_suspect || !failed.is_suspect) &&
           query.restart_tokens >= failed.restart_tokens &&
           (query.spares_caches || !failed.spares_caches);
  });
}

void Dispatch::note_failure(const Query& query) {
  // Some failed searches do not apply to other turns, and are not remembered. If the turn avoids a
  // worker, that worker might take other turns. If it is urgent, each start elsewhere raises the
  // limit for urgent turns. If it has a warm home, it needs more room on all other workers.
  const bool says_little = query.avoid || query.is_urgent || query.resident_tokens > 0;
  if (says_little || failures_.size() == kFailuresMax) return;
  failures_.push_back({.job = query.job,
                       .need_tokens = query.need_tokens,
                       .most_tokens = query.most_tokens,
                       .prompt_tokens = query.prompt_tokens,
                       .version_floor = query.version_floor,
                       .version_ceiling = query.version_ceiling,
                       .restart_tokens = query.restart_tokens,
                       .is_suspect = query.is_suspect,
                       .spares_caches = query.spares_caches});
}

void Dispatch::rescue() {
  if (book_.is_paused || book_.now_ns < book_.stall_check_ns) return;
  book_.stall_check_ns = kNever;
  promises_.clear();
  look_over_workers();
  for (std::size_t slot = 0; slot < book_.workers.size(); ++slot) {
    const Worker& worker = book_.workers[slot];
    if (worker.grant.is_live && worker.kind == WorkerKind::kBorrowed) rescue_from(slot);
  }
  for (const Promise& promise : promises_) {
    book_.workers.release(promise.slot, kPromise, promise.tokens);
  }
}

void Dispatch::rescue_from(std::size_t slot) {
  const std::vector<TrajectoryId> held = book_.workers[slot].held;
  for (const TrajectoryId id : held) {
    Trajectory* const trajectory = book_.trajectories.find(id);
    if (trajectory == nullptr || trajectory->state != TrajectoryState::kRunning) continue;
    Nanoseconds& check_ns = book_.stall_check_ns;
    check_ns = std::min(check_ns, trajectory->run.stall_at_ns);
    if (trajectory->run.stall_at_ns > book_.now_ns) continue;
    if (trajectory->known_tokens == trajectory->max_new_tokens) {
      book_.recall(*trajectory);  // only the report of its end is missing: it needs no room
      continue;
    }
    Query query = query_of(*trajectory, false);
    query.avoid = slot;
    query.resident_tokens = 0;  // it cannot stay
    query.spares_caches = false;
    const auto elsewhere = placement_.choose(book_.workers, query);
    if (!elsewhere) continue;
    // The same room is promised only once; the next stalled turn must find other room.
    const auto tokens = static_cast<std::int64_t>(query.need_tokens);
    promises_.push_back({*elsewhere, tokens});
    book_.workers.hold(*elsewhere, kPromise, tokens, 0);
    book_.recall(*trajectory);
  }
}

Query Dispatch::query_of(const Trajectory& trajectory, bool has_starved) const {
  const WorkerTable& workers = book_.workers;
  const std::int64_t left = trajectory.max_new_tokens - trajectory.known_tokens;
  Query query;
  query.need_tokens = static_cast<double>(book_.reserve_tokens(trajectory));
  query.most_tokens = static_cast<double>(trajectory.need_tokens());
  query.prefers_dedicated = !has_starved && has_dedicated_[trajectory.job] &&
                            book_.freshness(trajectory) == Freshness::kAtRisk;
  query.prompt_tokens = static_cast<double>(trajectory.prompt_tokens());
  query.expected_tokens = std::min(static_cast<double>(left), trajectory.forecast.turn_tokens_left);
  const double lag = book_.lag(trajectory);
  query.urgency = book_.is_tail(trajectory.job) ? 1 : lag;
  query.job = trajectory.job;
  query.published = static_cast<double>(book_.jobs[trajectory.job].published);
  const std::int64_t floor =
      has_starved ? book_.version_floor(trajectory.job) : book_.version_floor(trajectory);
  query.version_floor = static_cast<double>(std::max(floor, trajectory.accepted.min));
  query.version_ceiling = static_cast<double>(trajectory.accepted.max);
  query.is_suspect = trajectory.losses > 0;
  query.home = workers.find(trajectory.home.worker);
  query.avoid = avoided_slot(trajectory);
  // Limits on restarts and on exposure make turns wait. A starved turn is exempt from them.
  query.restart_tokens = !has_starved && trajectory.tries > 0 ? query.prompt_tokens : 0;
  query.burst_tokens = static_cast<double>(book_.settings.burst_prefill_tokens);
  query.is_urgent = lag > kUrgentLag;
  query.may_wait = !has_starved &&
                   static_cast<double>(oldest_versions_[trajectory.job]) < query.version_floor &&
                   trajectory.accepted.has(book_.jobs[trajectory.job].published);
  query.since_published_s =
      static_cast<double>(book_.now_ns - book_.jobs[trajectory.job].published_ns) / kNsPerS;
  query.exposures = has_starved ? nullptr : &book_.risk.exposures;
  const bool is_joint = book_.policy == PlacementPolicy::kJoint;
  const Nanoseconds waited_ns = book_.now_ns - trajectory.queued_ns;
  // After a failure the turn takes any worker with room.
  query.spares_caches = is_joint && !query.avoid && waited_ns < book_.settings.cache_wait_ns;
  if (query.home) {
    const double cached = static_cast<double>(trajectory.home.cached_tokens);
    query.hit_tokens =
        trajectory.home.is_warm(workers[*query.home]) ? std::min(cached, query.prompt_tokens) : 0;
  }
  if (is_joint && query.hit_tokens > 0 && !has_starved && can_go_home(query)) {
    const double end_tokens = book_.jobs[trajectory.job].outlook.end_tokens();
    query.resident_tokens =
        book_.settings.move_contexts * std::max(end_tokens, query.prompt_tokens);
  }
  return query;
}

bool Dispatch::can_go_home(const Query& query) const noexcept {
  const WorkerColumns& columns = book_.workers.columns();
  return query.avoid != query.home && columns.version[*query.home] >= query.version_floor &&
         columns.version[*query.home] <= query.version_ceiling &&
         columns.grant_tokens[*query.home] >= query.most_tokens;
}

std::optional<std::size_t> Dispatch::avoided_slot(const Trajectory& trajectory) const noexcept {
  const Avoided& avoided = trajectory.avoided;
  if (book_.now_ns >= avoided.until_ns) return std::nullopt;
  const auto slot = book_.workers.find(avoided.worker);
  const bool is_same = slot && book_.workers[*slot].grant.is_live &&
                       book_.workers[*slot].grant.epoch == avoided.grant_epoch;
  return is_same ? slot : std::nullopt;
}

void Dispatch::keep_for(const Query& query) {
  const WorkerColumns& columns = book_.workers.columns();
  std::optional<std::size_t> best;
  for (std::size_t slot = 0; slot < columns.size(); ++slot) {
    const Worker& worker = book_.workers[slot];
    const bool could = worker.grant.is_live && worker.job == query.job &&
                       static_cast<double>(worker.grant.kv_tokens) >= query.most_tokens &&
                       columns.version[slot] >= query.version_floor &&
                       columns.version[slot] <= query.version_ceiling && query.avoid != slot &&
                       std::find(kept_.begin(), kept_.end(), slot) == kept_.end();
    if (!could) continue;
    const bool is_better = !best || columns.room_tokens[slot] > columns.room_tokens[*best] ||
                           (columns.room_tokens[slot] == columns.room_tokens[*best] &&
                            columns.number[slot] < columns.number[*best]);
    if (is_better) best = slot;
  }
  if (!best) return;
  kept_.push_back(*best);
  book_.workers.hide(*best);
}

void Dispatch::look_over_workers() {
  const WorkerColumns& columns = book_.workers.columns();
  has_dedicated_.assign(book_.jobs.size(), false);
  oldest_versions_.assign(book_.jobs.size(), kCountMax);
  for (std::size_t slot = 0; slot < columns.size(); ++slot) {
    if (columns.kind[slot] == WorkerKind::kDedicated && book_.workers[slot].grant.is_live) {
      has_dedicated_[columns.job[slot]] = true;
    }
    const Worker& worker = book_.workers[slot];
    if (!worker.grant.is_live) continue;
    std::int64_t& oldest = oldest_versions_[columns.job[slot]];
    oldest = std::min(oldest, worker.version);
  }
}

double Dispatch::room_max(const Query& query) const noexcept {
  const WorkerColumns& columns = book_.workers.columns();
  // Only workers with a version that the job still accepts count.
  const auto floor = static_cast<double>(book_.version_floor(query.job));
  double most = -1;
  for (std::size_t slot = 0; slot < columns.size(); ++slot) {
    if (columns.job[slot] != query.job) continue;
    if (columns.version[slot] >= floor) most = std::max(most, columns.room_tokens[slot]);
  }
  return most;
}

}  // namespace rose::scheduler
