#include "scheduler/event_rules.h"

#include <algorithm>
#include <tuple>

namespace rose::scheduler {

void EventRules::apply(std::span<const Event> events) {
  place_ = 0;
  shrunk_.clear();
  outgrown_.clear();
  for (const Event& event : events) {
    const auto place = static_cast<std::size_t>(place_);
    if (place % kPrefetch == 0) prefetch(events, place);
    std::visit(*this, event);
    ++place_;
  }
  // After all events, because a worker may report a smaller grant before it reports the turns that
  // it gave up.
  for (const std::size_t slot : shrunk_) fit(slot);
  for (const std::size_t slot : outgrown_) book_.counters.outgrown += fit(slot);
}

void EventRules::prefetch(std::span<const Event> events, std::size_t begin) const noexcept {
  if (events.size() < begin + kPrefetch) return;
  for (const Event& event : events.subspan(begin, kPrefetch)) {
    if (const auto* const ended = std::get_if<TurnEnded>(&event)) {
      book_.trajectories.prefetch(ended->trajectory);
    } else if (const auto* const progress = std::get_if<TurnProgress>(&event)) {
      book_.trajectories.prefetch(progress->trajectory);
    }
  }
}

void EventRules::operator()(const WorkerJoined& event) {
  const std::size_t domain = book_.risk.exposures.place_of(event.domain);
  book_.workers.join(event, book_.jobs.place_of(event.job), domain);
}

void EventRules::operator()(const GrantChanged& event) {
  WorkerTable& workers = book_.workers;
  const auto slot = workers.find(event.worker);
  const bool has_meaning = slot && !workers[*slot].is_draining && is_count(event.grant_epoch) &&
                           is_count(event.kv_tokens) && event.ttl_ms >= 0;
  const bool is_new = has_meaning && workers.is_new_epoch(*slot, event.grant_epoch);
  const CapacityGrant grant = slot ? workers[*slot].grant : CapacityGrant{};
  const bool is_same = has_meaning && grant.is_live && grant.epoch == event.grant_epoch;
  if (!is_new && !is_same) {
    ++book_.counters.stale_events;
    return;
  }
  book_.set_grant(*slot, event);
  shrunk_.push_back(*slot);
}

void EventRules::operator()(const WorkerLost& event) {
  if (const auto slot = book_.workers.find(event.worker)) {
    book_.lose(*slot, event.is_crash);
  } else {
    ++book_.counters.stale_events;
  }
}

void EventRules::operator()(const VersionPublished& event) {
  Job& job = book_.jobs[book_.jobs.place_of(event.job)];
  if (event.version > job.published) {
    job.outlook.publish(event.version - job.published, book_.now_ns);
    job.published = event.version;
    job.published_ns = book_.now_ns;
  } else {
    ++book_.counters.stale_events;
  }
}

void EventRules::operator()(const VersionCommitted& event) {
  const auto slot = book_.workers.find(event.worker);
  if (!slot || !is_count(event.version)) {
    ++book_.counters.stale_events;
    return;
  }
  const bool is_newer = event.version > book_.workers[*slot].version;
  book_.workers.set_version(*slot, event.version);
  const Job& job = book_.jobs[book_.workers[*slot].job];
  // A repeated report, as after a reconnection, says nothing about the duration of the commit.
  if (is_newer && event.version == job.published) {
    book_.workers.observe_commit(*slot, book_.now_ns - job.published_ns);
  }
  book_.recall_misfits(*slot);
  book_.has_changed = true;
}

void EventRules::operator()(const TrajectoryCreated& event) { book_.create(event); }

void EventRules::operator()(const TurnReady& event) {
  Trajectory* const trajectory = book_.trajectories.find(event.trajectory);
  if (trajectory != nullptr) book_.queue(*trajectory, event);
}

void EventRules::operator()(const TurnProgress& event) {
  Trajectory* const trajectory = find_turn(event);
  if (trajectory == nullptr || !is_count(event.first_token) || !is_count(event.tokens) ||
      event.tokens == 0) {
    ++book_.counters.stale_events;
    book_.counters.tokens_ignored += is_count(event.tokens) ? event.tokens : 0;
    return;
  }
  book_.note_progress(*trajectory);
  const VersionLimits& accepted = trajectory->accepted;
  const bool fits = accepted.has(event.version_min) && accepted.has(event.version_max);
  if (!fits && !accepted.has_all()) return refuse(*trajectory, event);
  deliver_news(*trajectory, event);
  const bool is_whole = trajectory->state == TrajectoryState::kRecalled &&
                        trajectory->awaited_tokens != kTokensUnknown &&
                        trajectory->known_tokens >= trajectory->awaited_tokens;
  if (is_whole) conclude(*trajectory, trajectory->awaited_end);
}

void EventRules::operator()(const TurnEnded& event) {
  Trajectory* const trajectory = find_turn(event);
  if (trajectory == nullptr) {
    ++book_.counters.stale_events;
    return;
  }
  // A duplicate report of an earlier try may end a later try that still runs on the same worker. So
  // the worker must stop before the turn goes elsewhere; a worker that is done ignores the Stop.
  const bool may_still_run =
      trajectory->state == TrajectoryState::kRunning && trajectory->tries > 1;
  if (may_still_run && event.end != TurnEnd::kRefused) book_.stop(*trajectory);
  if (event.end == TurnEnd::kFailed) {
    book_.fail(*trajectory);
  } else if (event.end == TurnEnd::kRefused) {
    book_.drop(*trajectory, DropReason::kRefused);
  } else if (trajectory->run.has_misfit) {
    book_.requeue(*trajectory);  // the rest of its tokens is refused
  } else if (std::min(event.tokens, trajectory->max_new_tokens) > trajectory->known_tokens) {
    book_.await_rest(*trajectory, event.end, std::min(event.tokens, trajectory->max_new_tokens));
  } else {
    conclude(*trajectory, event.end);
  }
}

void EventRules::operator()(const TrajectoryEnded& event) {
  Trajectory* const trajectory = book_.trajectories.find(event.trajectory);
  if (trajectory == nullptr) return;  // an earlier event of the batch dropped it
  if (trajectory->state == TrajectoryState::kEnv) {
    book_.end(*trajectory);
  } else {
    book_.drop(*trajectory, DropReason::kGivenUp);
  }
}

void EventRules::operator()(const Consumed& event) {
  Job& job = book_.jobs[book_.jobs.place_of(event.job)];
  job.outlook.consume(event.trajectories, job.published, job.max_staleness);
  job.consumed += event.trajectories;
  // the trainer will use the next trajectories sooner, so workers with older weights may run them
  book_.has_changed = true;
  book_.counters.consumed += event.trajectories;
}

void EventRules::operator()(const JobJoined& event) {
  book_.jobs.join(event);
  book_.has_changed = true;  // its new limits may allow workers with older weights
}

void EventRules::operator()(const WorkerMeasured& event) {
  if (const auto slot = book_.workers.find(event.worker)) {
    book_.risk.measure(book_.workers, *slot, event);
    book_.has_changed = true;
  } else {
    ++book_.counters.stale_events;
  }
}

void EventRules::operator()(const WorkerDrained& event) {
  if (const auto slot = book_.workers.find(event.worker)) {
    book_.drain(*slot);
  } else {
    ++book_.counters.stale_events;
  }
}

void EventRules::operator()(const TurnCut& event) {
  Trajectory* const trajectory = book_.trajectories.find(event.trajectory);
  const bool has_turn =
      trajectory != nullptr && trajectory->turn == event.turn &&
      (is_on_worker(trajectory->state) || trajectory->state == TrajectoryState::kQueued);
  if (has_turn && event.tokens <= trajectory->known_tokens) {
    book_.cut(*trajectory, event.tokens);
  } else {
    ++book_.counters.stale_events;
  }
}

void EventRules::operator()(const Paused& event) { book_.pause(event.is_recalling); }

void EventRules::operator()(const Resumed&) { book_.resume(); }

template <typename E>
Trajectory* EventRules::find_turn(const E& event) noexcept {
  Trajectory* const trajectory = book_.trajectories.find(event.trajectory);
  const bool may_speak = trajectory != nullptr && is_on_worker(trajectory->state) &&
                         trajectory->turn == event.turn && trajectory->run.worker == event.worker &&
                         trajectory->run.grant_epoch == event.grant_epoch;
  return may_speak ? trajectory : nullptr;
}

void EventRules::deliver_news(Trajectory& trajectory, const TurnProgress& event) {
  const std::int64_t known = trajectory.known_tokens;
  const std::int64_t end = std::min(event.first_token + event.tokens, trajectory.max_new_tokens);
  // Tokens behind a gap cannot be delivered in order; this worker or the next one repeats them.
  const bool is_news = event.first_token <= known && end > known;
  const std::int64_t news = is_news ? end - known : 0;
  book_.counters.tokens_ignored += event.tokens - news;
  if (!is_news) return;
  book_.deliver(trajectory, place_, known - event.first_token, news);
  if (book_.extend(trajectory)) outgrown_.push_back(trajectory.run.slot);
  if (event.version_min >= 0) {
    trajectory.version_min = std::min(trajectory.version_min, event.version_min);
  }
}

void EventRules::refuse(Trajectory& trajectory, const TurnProgress& event) {
  book_.counters.tokens_ignored += event.tokens;
  trajectory.run.has_misfit = true;
  // The tokens show which weights the worker has, so that the turn does not come back to it.
  const std::int64_t version =
      event.version_max > trajectory.accepted.max ? event.version_max : event.version_min;
  if (trajectory.run.is_held && is_count(version)) {
    book_.workers.set_version(trajectory.run.slot, version);
    book_.recall_misfits(trajectory.run.slot);
  }
  if (trajectory.state == TrajectoryState::kRunning) book_.recall(trajectory);
}

void EventRules::conclude(Trajectory& trajectory, TurnEnd end) {
  if (end == TurnEnd::kFinished) {
    book_.finish(trajectory);
  } else {
    book_.requeue(trajectory);
  }
}

std::int64_t EventRules::fit(std::size_t slot) {
  const WorkerTable& workers = book_.workers;
  const Share share = workers.share(slot);
  std::int64_t tokens = 0;
  // lag, tokens to compute again, negative time of admission, id
  std::vector<std::tuple<double, std::int64_t, Nanoseconds, TrajectoryId>> victims;
  for (const std::size_t peer : workers[slot].peers) {
    for (const TrajectoryId id : workers[peer].held) {
      const Trajectory* const trajectory = book_.trajectories.find(id);
      if (trajectory == nullptr || trajectory->state != TrajectoryState::kRunning) continue;
      tokens += trajectory->run.reserved_tokens;
      victims.emplace_back(book_.lag(*trajectory), trajectory->prompt_tokens(),
                           -trajectory->started_ns, id);
    }
  }
  auto turns = static_cast<std::int64_t>(victims.size());
  const auto fits = [&] { return tokens <= share.kv_tokens && turns <= share.seats; };
  if (fits()) return 0;
  std::sort(victims.begin(), victims.end());
  std::int64_t recalled = 0;
  for (const auto& [lag, lost, age, id] : victims) {
    if (fits()) break;
    Trajectory* const trajectory = book_.trajectories.find(id);
    tokens -= trajectory->run.reserved_tokens;
    --turns;
    book_.recall(*trajectory);
    ++recalled;
  }
  return recalled;
}

}  // namespace rose::scheduler
