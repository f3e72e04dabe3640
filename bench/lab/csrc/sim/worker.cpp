#include "sim/worker.h"

#include <algorithm>
#include <utility>

namespace rose::sim {

namespace {

// Smallest share of a device that a worker reports. With a smaller one no turn would be placed
// there, so that no measurement would ever correct the estimate.
constexpr double kShareMin = 0.05;

// Returns the mean share of its device that a worker gets while anything is lent. In production, an
// operator who has watched serving declares this share.
double expected_share(const Lending& lending) noexcept {
  double lent_ns = 0;
  double share_ns = 0;
  for (std::size_t row = 0; row + 1 < lending.at_ns.size(); ++row) {
    if (lending.kv_tokens[row] <= 0) continue;
    const auto lasts = static_cast<double>(lending.at_ns[row + 1] - lending.at_ns[row]);
    lent_ns += lasts;
    share_ns += lasts * lending.share[row];
  }
  if (lent_ns > 0) return std::max(kShareMin, share_ns / lent_ns);
  return lending.share.empty() ? 1 : std::max(kShareMin, lending.share[0]);
}

}  // namespace

using scheduler::GrantChanged;
using scheduler::TurnEnd;
using scheduler::TurnEnded;
using scheduler::TurnProgress;
using scheduler::VersionCommitted;
using scheduler::WorkerJoined;

SimulatedWorker::SimulatedWorker(const WorkerSpec& spec, const Knobs& knobs, std::int64_t place,
                                 EventQueue& event_queue, Inbox& inbox)
    : spec_{spec},
      place_{place},
      report_ns_{spec.kind == WorkerKind::kBorrowed ? knobs.borrowed_report_ns
                                                    : knobs.dedicated_report_ns},
      event_queue_{event_queue},
      inbox_{inbox},
      engine_{spec.times, knobs.chunk_tokens, knobs.is_stepwise},
      kv_tokens_{spec.kv_tokens} {}

void SimulatedWorker::join(Nanoseconds now_ns) {
  const StepTimes& times = spec_.times;
  const double share = expected_share(spec_.lending);
  inbox_.push(WorkerJoined{spec_.number, spec_.kind, spec_.seats,
                           times.prefill_tokens_per_s * share, times.decode_step_ms / share,
                           times.decode_ms_per_sequence / share, version_, spec_.domain, spec_.job,
                           scheduler::kOwnDevice, times.decode_ms_per_context_token / share},
              now_ns);
  const Lending& lending = spec_.lending;
  if (!lending.at_ns.empty()) {
    share_ = lending.share[0];
    kv_tokens_ = std::min(spec_.kv_tokens, lending.kv_tokens[0]);
    apply_speed(now_ns);
  }
  if (lending.at_ns.size() > 1) {
    event_queue_.schedule(lending.at_ns[1], EventKind::kLendingChanged, place_);
  }
  if (kv_tokens_ > 0) open(now_ns);
}

void SimulatedWorker::start(const scheduler::Start& start, SimulatedTrajectory& trajectory,
                            std::int64_t to_generate, Nanoseconds now_ns) {
  const std::int64_t prompt = trajectory.context_tokens + start.first_token;
  const Held held{start.trajectory, start.turn, start.first_token, prompt,
                  to_generate,      0,          version_};
  if (!has_grant_ || start.grant_epoch != grant_epoch_) {
    inbox_.push(TurnEnded{held.id, held.turn, spec_.number, start.grant_epoch,
                          TurnEnd::kInterrupted, held.first_token},
                now_ns);
    return;
  }
  // The last token of the prompt is always computed, because that yields the first new token.
  const std::int64_t hit = std::min(prefixes_.take(held.id), prompt - 1);
  const std::int64_t seen = std::min(trajectory.computed_tokens, prompt);
  counts_.reprefill_tokens += std::max<std::int64_t>(0, seen - hit);
  engine_.add(prompt - hit, prompt, to_generate, now_ns);
  held_.push_back(held);
  prefixes_.shrink_to(std::max<std::int64_t>(0, kv_tokens_ - held_tokens(now_ns)));
  schedule_batch_change();
  schedule_report(now_ns);
}

void SimulatedWorker::stop(TrajectoryId id, std::vector<SimulatedTrajectory>& trajectories,
                           Nanoseconds now_ns) {
  const auto found =
      std::find_if(held_.begin(), held_.end(), [&](const Held& held) { return held.id == id; });
  if (found == held_.end()) return;
  give_back(static_cast<std::size_t>(found - held_.begin()), trajectories, now_ns);
  schedule_batch_change();
}

void SimulatedWorker::on_batch_changed(std::int64_t mark,
                                       std::vector<SimulatedTrajectory>& trajectories,
                                       Nanoseconds now_ns) {
  if (mark != batch_mark_) return;
  batch_ns_ = kNever;
  finished_.clear();
  engine_.advance(now_ns, finished_);
  for (const std::size_t place : finished_) {
    Held& held = held_[place];
    const SimulatedEngine::Progress all{held.to_generate, held.prompt_tokens + held.to_generate};
    end(held, all, TurnEnd::kFinished, trajectories[static_cast<std::size_t>(held.id)], now_ns);
  }
  while (!finished_.empty()) {
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(finished_.back()));
    finished_.pop_back();
  }
  for (std::size_t place = 0; place < held_.size(); ++place) {
    if (held_[place].reported == 0) {
      report(held_[place], engine_.progress(place, now_ns).generated, now_ns);
    }
  }
  schedule_batch_change();
}

void SimulatedWorker::on_report_due(std::vector<SimulatedTrajectory>& trajectories,
                                    Nanoseconds now_ns) {
  is_report_scheduled_ = false;
  report(now_ns);
  fit(trajectories, now_ns);
  schedule_batch_change();
  if (!held_.empty()) schedule_report(now_ns);
}

std::vector<TrajectoryId> SimulatedWorker::on_lending_changed(
    std::vector<SimulatedTrajectory>& trajectories, Nanoseconds now_ns) {
  const Lending& lending = spec_.lending;
  ++row_;
  share_ = lending.share[row_];
  const std::int64_t before =
      std::exchange(kv_tokens_, std::min(spec_.kv_tokens, lending.kv_tokens[row_]));
  if (row_ + 1 < lending.at_ns.size()) {
    event_queue_.schedule(lending.at_ns[row_ + 1], EventKind::kLendingChanged, place_);
  }
  std::vector<TrajectoryId> victims;
  if (kv_tokens_ < before) victims = fit(trajectories, now_ns);
  counts_.revocations += victims.empty() ? 0 : 1;
  if (kv_tokens_ > 0 && before == 0) {
    event_queue_.schedule(now_ns + spec_.start_up_ns, EventKind::kStartedUp, place_,
                          ++start_up_mark_);
  } else if (kv_tokens_ != before && has_grant_) {
    report_grant(now_ns);
  }
  if (kv_tokens_ == 0) {
    has_grant_ = false;
    ++start_up_mark_;  // invalidates a pending start-up
  }
  apply_speed(now_ns);
  schedule_batch_change();
  return victims;
}

void SimulatedWorker::on_started_up(std::int64_t mark, Nanoseconds now_ns) {
  if (mark == start_up_mark_) open(now_ns);
}

void SimulatedWorker::on_published(std::int64_t version, Nanoseconds now_ns) {
  event_queue_.schedule(now_ns + spec_.update_ns, EventKind::kUpdateArrived, place_, version);
}

void SimulatedWorker::on_update_arrived(std::int64_t version, Nanoseconds now_ns) {
  arrived_ = std::max(arrived_, version);
  if (pausing_for_ == kNone) pause(now_ns);
}

void SimulatedWorker::on_updated(Nanoseconds now_ns) {
  version_ = std::exchange(pausing_for_, kNone);
  prefixes_.clear();
  apply_speed(now_ns);
  inbox_.push(VersionCommitted{spec_.number, version_}, now_ns);
  if (arrived_ > version_) pause(now_ns);
  schedule_batch_change();
}

void SimulatedWorker::report(Nanoseconds now_ns) {
  for (std::size_t place = 0; place < held_.size(); ++place) {
    report(held_[place], engine_.progress(place, now_ns).generated, now_ns);
  }
}

void SimulatedWorker::apply_speed(Nanoseconds now_ns) noexcept {
  engine_.set_speed(pausing_for_ == kNone ? share_ : 0, now_ns);
}

void SimulatedWorker::schedule_batch_change() {
  const Nanoseconds next_ns = engine_.next_ns();
  if (next_ns == batch_ns_) return;
  batch_ns_ = next_ns;
  ++batch_mark_;
  if (next_ns != kNever) {
    event_queue_.schedule(next_ns, EventKind::kBatchChanged, place_, batch_mark_);
  }
}

void SimulatedWorker::schedule_report(Nanoseconds now_ns) {
  if (is_report_scheduled_) return;
  is_report_scheduled_ = true;
  event_queue_.schedule(now_ns + report_ns_, EventKind::kReportDue, place_);
}

void SimulatedWorker::report(Held& held, std::int64_t generated, Nanoseconds now_ns) {
  if (generated == held.reported) return;
  inbox_.push(
      TurnProgress{held.id, held.turn, spec_.number, grant_epoch_, held.first_token + held.reported,
                   generated - held.reported, version_, version_},
      now_ns);
  held.reported = generated;
}

void SimulatedWorker::end(Held& held, const SimulatedEngine::Progress& progress, TurnEnd end,
                          SimulatedTrajectory& trajectory, Nanoseconds now_ns) {
  report(held, progress.generated, now_ns);
  inbox_.push(TurnEnded{held.id, held.turn, spec_.number, grant_epoch_, end,
                        held.first_token + progress.generated},
              now_ns);
  trajectory.computed_tokens = std::max(trajectory.computed_tokens, progress.computed);
  if (held.version == version_) prefixes_.put(held.id, progress.computed);
}

void SimulatedWorker::give_back(std::size_t place, std::vector<SimulatedTrajectory>& trajectories,
                                Nanoseconds now_ns) {
  Held held = held_[place];
  const SimulatedEngine::Progress progress = engine_.remove(place, now_ns);
  held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(place));
  end(held, progress, TurnEnd::kInterrupted, trajectories[static_cast<std::size_t>(held.id)],
      now_ns);
  ++counts_.recalls;
}

std::vector<TrajectoryId> SimulatedWorker::fit(std::vector<SimulatedTrajectory>& trajectories,
                                               Nanoseconds now_ns) {
  std::vector<TrajectoryId> victims;
  std::int64_t tokens = held_tokens(now_ns);
  // The newest turns lose the least work.
  while (!held_.empty() && (tokens > kv_tokens_ || kv_tokens_ == 0)) {
    const std::size_t last = held_.size() - 1;
    tokens -= held_[last].prompt_tokens + engine_.progress(last, now_ns).generated;
    victims.push_back(held_[last].id);
    give_back(last, trajectories, now_ns);
  }
  prefixes_.shrink_to(kv_tokens_ - tokens);
  return victims;
}

void SimulatedWorker::open(Nanoseconds now_ns) {
  ++grant_epoch_;
  has_grant_ = true;
  report_grant(now_ns);
}

void SimulatedWorker::report_grant(Nanoseconds now_ns) {
  inbox_.push(GrantChanged{spec_.number, grant_epoch_, kv_tokens_, 0}, now_ns);
}

void SimulatedWorker::pause(Nanoseconds now_ns) {
  report(now_ns);  // these tokens were generated with the old weights
  pausing_for_ = arrived_;
  apply_speed(now_ns);
  schedule_batch_change();
  event_queue_.schedule(now_ns + spec_.pause_ns, EventKind::kUpdated, place_);
}

std::int64_t SimulatedWorker::held_tokens(Nanoseconds now_ns) noexcept {
  std::int64_t tokens = 0;
  for (std::size_t place = 0; place < held_.size(); ++place) {
    tokens += held_[place].prompt_tokens + engine_.progress(place, now_ns).generated;
  }
  return tokens;
}

}  // namespace rose::sim
