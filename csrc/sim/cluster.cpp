#include "sim/cluster.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace rose::sim {

using namespace scheduler;  // its events and actions

namespace {

// Number of events between two questions to the caller whether to continue.
constexpr std::int64_t kRoundsBetweenQuestions = 1 << 16;

}  // namespace

Cluster::Cluster(const World& world, Core& core)
    : world_{world}, core_{core}, delivered_(world.jobs.size()), dropped_(world.jobs.size()) {
  for (std::size_t job = 0; job < world.jobs.size(); ++job) {
    const JobSpec& spec = world.jobs[job];
    for (std::int64_t index = 0; index < spec.trajectories(); ++index) {
      flights_.push_back({.job = static_cast<std::int64_t>(job), .index = index});
    }
    const auto& said = spec.said_tokens;
    turn_tokens_max_.push_back(said.empty() ? 1 : *std::max_element(said.begin(), said.end()));
  }
  std::size_t first = 0;
  for (const JobSpec& spec : world.jobs) {
    const std::span<Flight> flights{flights_.data() + first, spec.group.size()};
    trainers_.emplace_back(spec, flights, world.versions);
    first += spec.group.size();
  }
  for (const WorkerSpec& spec : world.workers) {
    const std::int64_t place = std::ssize(workers_);
    workers_.emplace_back(spec, world.knobs, place, timeline_, inbox_);
    place_of_[spec.number] = place;
  }
}

Status Cluster::run(const GoOn& go_on) {
  for (const JobSpec& job : world_.jobs) {
    inbox_.push(JobJoined{job.job, job.batch, job.max_staleness, job.weight}, now_ns_);
  }
  for (RolloutWorker& worker : workers_) worker.join(now_ns_);
  ROSE_TRY(step());
  for (std::int64_t round = 1; !is_over() && next_ns() <= world_.horizon_ns; ++round) {
    ROSE_TRY(advance());
    if (round % kRoundsBetweenQuestions == 0 && !go_on(now_ns_, events_)) break;
  }
  if (!is_over() && next_ns() > world_.horizon_ns) now_ns_ = world_.horizon_ns;
  // Reports the remaining tokens, so that the sums are complete.
  for (RolloutWorker& worker : workers_) worker.report(now_ns_);
  return step();
}

Outcome Cluster::outcome() const {
  Outcome outcome;
  outcome.ended_ns = now_ns_;
  for (std::size_t job = 0; job < trainers_.size(); ++job) {
    const Trainer& trainer = trainers_[job];
    JobOutcome one{.versions = trainer.rollouts(),
                   .started_ns = {},
                   .done_ns = {},
                   .used_by = trainer.used_by(),
                   .staleness = trainer.staleness(),
                   .tokens_delivered = delivered_[job],
                   .dropped = dropped_[job]};
    for (const Flight& flight : trainer.flights()) {
      one.started_ns.push_back(flight.started_ns);
      one.done_ns.push_back(flight.done_ns);
    }
    outcome.tokens_lost -= delivered_[job];
    outcome.jobs.push_back(std::move(one));
  }
  outcome.tokens_lost += reported_;
  for (const RolloutWorker& worker : workers_) {
    outcome.tokens_by_worker.push_back(worker.tokens_said());
    outcome.busy_ns_by_worker.push_back(worker.busy_ns());
    outcome.revocations += worker.counts().revocations;
    outcome.recalls += worker.counts().recalls;
    outcome.reprefill_tokens += worker.counts().reprefill_tokens;
  }
  for (const Revocation& revocation : revocations_) {
    outcome.recovery_ns.push_back(revocation.recovery_ns);
  }
  outcome.events = events_;
  outcome.decisions = decisions_;
  outcome.digest = digest_.value();
  outcome.log = log_;
  return outcome;
}

// ---- time ---------------------------------------------------------------------------------------

Nanoseconds Cluster::step_due_ns() const noexcept {
  return inbox_.is_empty() ? stepped_ns_ + world_.knobs.tick_ns
                           : inbox_.since_ns() + world_.knobs.gather_ns;
}

Nanoseconds Cluster::next_ns() const noexcept {
  const Nanoseconds due_ns = step_due_ns();
  return timeline_.is_empty() ? due_ns : std::min(due_ns, timeline_.next_ns());
}

Status Cluster::advance() {
  now_ns_ = next_ns();
  // Events at the time of a step happen before the step.
  if (timeline_.is_empty() || timeline_.next_ns() > now_ns_) return step();
  happen(timeline_.take());
  return {};
}

void Cluster::happen(const Moment& moment) {
  const std::int64_t subject = moment.subject;
  switch (moment.happening) {
    case Happening::kBatchChanged:
      return worker_at(subject).on_batch_changed(moment.mark, flights_, now_ns_);
    case Happening::kReportDue:
      return worker_at(subject).on_report_due(flights_, now_ns_);
    case Happening::kLendingChanged:
      return note_revocation(worker_at(subject).on_lending_changed(flights_, now_ns_));
    case Happening::kStartedUp:
      return worker_at(subject).on_started_up(moment.mark, now_ns_);
    case Happening::kUpdateArrived:
      return worker_at(subject).on_update_arrived(moment.mark, now_ns_);
    case Happening::kUpdated:
      return worker_at(subject).on_updated(now_ns_);
    case Happening::kToolDone:
      return inbox_.push(ready(flight_of(subject)), now_ns_);
    case Happening::kLearned:
      return learned(subject);
  }
}

void Cluster::note_revocation(const std::vector<TrajectoryId>& victims) {
  if (victims.empty()) return;
  if (revocations_.empty() || revocations_.back().at_ns != now_ns_) {
    revocations_.push_back({now_ns_, 0, kNone});
  }
  for (const TrajectoryId id : victims) {
    flight_of(id).revocation = std::ssize(revocations_) - 1;
    ++revocations_.back().left;
  }
}

void Cluster::restarted(Flight& flight) noexcept {
  if (flight.revocation == kNone) return;
  Revocation& revocation = revocations_[static_cast<std::size_t>(flight.revocation)];
  if (--revocation.left == 0) revocation.recovery_ns = now_ns_ - revocation.at_ns;
  flight.revocation = kNone;
}

bool Cluster::is_over() const noexcept {
  return std::all_of(trainers_.begin(), trainers_.end(),
                     [](const Trainer& trainer) { return trainer.is_over(); });
}

// ---- the front ----------------------------------------------------------------------------------

Status Cluster::step() {
  stepped_ns_ = now_ns_;
  told_.clear();
  inbox_.swap(told_);
  create();
  do {
    ROSE_TRY(tell());
    told_.clear();
    told_.swap(answers_);
    create();
  } while (!told_.empty());
  return {};
}

void Cluster::create() {
  TrajectoryId first = 0;
  for (Trainer& trainer : trainers_) {
    const auto count = static_cast<std::int64_t>(trainer.flights().size());
    while (trainer.created_so_far() < std::min(trainer.creatable(), count)) {
      const TrajectoryId id = first + trainer.created_so_far();
      Flight& flight = flight_of(id);
      flight.state = FlightState::kWaiting;
      const JobSpec& job = job_of(flight);
      told_.push_back(
          TrajectoryCreated{id, job.group[static_cast<std::size_t>(flight.index)], job.job});
      trainer.created();
    }
    first += count;
  }
}

Status Cluster::tell() {
  for (const Event& event : told_) {
    const auto* const progress = std::get_if<TurnProgress>(&event);
    if (progress == nullptr) continue;
    // Tokens of a dropped trajectory are no loss.
    const bool is_wanted = flight_of(progress->trajectory).state == FlightState::kFlying;
    reported_ += is_wanted ? progress->tokens : 0;
  }
  actions_.clear();
  ROSE_TRY(core_.step(told_, now_ns_, actions_));
  events_ += std::ssize(told_);
  if (world_.knobs.is_logged) log_.push_back({now_ns_, told_, actions_});
  for (const Action& action : actions_) {
    digest_.add(action);
    ROSE_TRY(std::visit([this](const auto& one) { return act(one); }, action));
  }
  return {};
}

Status Cluster::act(const Admit& action) {
  Flight& flight = flight_of(action.trajectory);
  flight.state = FlightState::kFlying;
  flight.started_ns = now_ns_;
  flight.context_tokens = job_of(flight).heard_tokens[turn_of(flight)];
  trainers_[static_cast<std::size_t>(flight.job)].admitted();
  answers_.push_back(ready(flight));
  return {};
}

Status Cluster::act(const Start& action) {
  Flight& flight = flight_of(action.trajectory);
  ROSE_CHECK(action.first_token == flight.said_tokens && action.turn == flight.turn,
             "a turn would continue at the wrong token");
  ++decisions_;
  restarted(flight);
  const std::int64_t to_say = job_of(flight).said_tokens[turn_of(flight)] - flight.said_tokens;
  if (to_say == 0) {
    // The last token was delivered, but the report of the turn's end was lost.
    answers_.push_back(TurnEnded{action.trajectory, action.turn, action.worker, action.grant_epoch,
                                 TurnEnd::kFinished, flight.said_tokens});
    return {};
  }
  worker_at(place_of_.at(action.worker)).start(action, flight, to_say, now_ns_);
  return {};
}

Status Cluster::act(const Stop& action) {
  worker_at(place_of_.at(action.worker)).stop(action.trajectory, flights_, now_ns_);
  return {};
}

Status Cluster::act(const Deliver& action) {
  Flight& flight = flight_of(action.trajectory);
  const auto* const progress =
      std::get_if<TurnProgress>(&told_[static_cast<std::size_t>(action.event)]);
  ROSE_CHECK(progress != nullptr && progress->trajectory == action.trajectory &&
                 progress->first_token + action.skip == flight.said_tokens &&
                 action.skip + action.tokens <= progress->tokens,
             "a token would be missing or repeated");
  flight.said_tokens += action.tokens;
  flight.version_min = std::min(flight.version_min, progress->version_min);
  delivered_[static_cast<std::size_t>(flight.job)] += action.tokens;
  return {};
}

Status Cluster::act(const TurnDone& action) {
  Flight& flight = flight_of(action.trajectory);
  const JobSpec& job = job_of(flight);
  const std::size_t turn = turn_of(flight);
  ROSE_CHECK(action.turn == flight.turn && flight.said_tokens == job.said_tokens[turn],
             "a turn would end without all its tokens");
  restarted(flight);
  flight.context_tokens += std::exchange(flight.said_tokens, 0);
  const auto index = static_cast<std::size_t>(flight.index);
  if (static_cast<std::int64_t>(turn) + 1 == job.first_turn[index + 1]) {
    flight.done_ns = now_ns_;
    answers_.push_back(TrajectoryEnded{action.trajectory});
    over(flight, FlightState::kDone);
    return {};
  }
  ++flight.turn;
  flight.context_tokens += job.heard_tokens[turn + 1];
  timeline_.foresee(now_ns_ + job.tool_ns[turn], Happening::kToolDone, action.trajectory);
  return {};
}

Status Cluster::act(const Drop& action) {
  Flight& flight = flight_of(action.trajectory);
  restarted(flight);
  ++dropped_[static_cast<std::size_t>(flight.job)];
  over(flight, FlightState::kDropped);
  return {};
}

std::size_t Cluster::turn_of(const Flight& flight) const noexcept {
  const auto index = static_cast<std::size_t>(flight.index);
  return static_cast<std::size_t>(job_of(flight).first_turn[index] + flight.turn);
}

TurnReady Cluster::ready(const Flight& flight) const noexcept {
  const TrajectoryId id = &flight - flights_.data();
  return {id, flight.turn, flight.context_tokens,
          turn_tokens_max_[static_cast<std::size_t>(flight.job)]};
}

// ---- the trainers -------------------------------------------------------------------------------

void Cluster::over(Flight& flight, FlightState state) {
  flight.state = state;
  trainers_[static_cast<std::size_t>(flight.job)].over(flight.index);
  train(flight.job);
}

void Cluster::train(std::int64_t job) {
  Trainer& trainer = trainers_[static_cast<std::size_t>(job)];
  const JobSpec& spec = world_.jobs[static_cast<std::size_t>(job)];
  if (trainer.take()) timeline_.foresee(now_ns_ + spec.train_ns, Happening::kLearned, job);
  // In a later step than the ends of these trajectories, which are answers of this step.
  if (const std::int64_t count = trainer.thrown_away()) {
    inbox_.push(Consumed{count, spec.job}, now_ns_);
  }
}

void Cluster::learned(std::int64_t job) {
  Trainer& trainer = trainers_[static_cast<std::size_t>(job)];
  const std::int64_t learned_from = trainer.publish(now_ns_);
  const JobId number = world_.jobs[static_cast<std::size_t>(job)].job;
  inbox_.push(VersionPublished{trainer.published(), number}, now_ns_);
  inbox_.push(Consumed{learned_from, number}, now_ns_);
  for (std::size_t place = 0; place < workers_.size(); ++place) {
    if (world_.workers[place].job == number)
      workers_[place].on_published(trainer.published(), now_ns_);
  }
  train(job);
}

}  // namespace rose::sim
