#include "sim/cluster.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace rose::sim {

using namespace scheduler;  // its events and actions

namespace {

// Number of events or steps between two calls of `go_on`.
constexpr std::int64_t kRoundsBetweenQuestions = 1 << 16;

}  // namespace

Cluster::Cluster(const World& world, Core& core)
    : world_{world}, core_{core}, delivered_(world.jobs.size()), dropped_(world.jobs.size()) {
  for (std::size_t job = 0; job < world.jobs.size(); ++job) {
    const JobSpec& spec = world.jobs[job];
    for (std::int64_t index = 0; index < spec.trajectories(); ++index) {
      trajectories_.push_back({.job = static_cast<std::int64_t>(job), .index = index});
    }
    const auto& tokens = spec.output_tokens;
    turn_tokens_max_.push_back(tokens.empty() ? 1
                                              : *std::max_element(tokens.begin(), tokens.end()));
  }
  std::size_t first = 0;
  for (const JobSpec& spec : world.jobs) {
    const std::span<SimulatedTrajectory> trajectories{trajectories_.data() + first,
                                                      spec.group.size()};
    trainers_.emplace_back(spec, trajectories, world.versions);
    first += spec.group.size();
  }
  for (const WorkerSpec& spec : world.workers) {
    const std::int64_t place = std::ssize(workers_);
    workers_.emplace_back(spec, world.knobs, place, event_queue_, inbox_);
    place_of_[spec.number] = place;
  }
}

Status Cluster::run(const GoOn& go_on) {
  for (const JobSpec& job : world_.jobs) {
    inbox_.push(JobJoined{job.job, job.batch, job.max_staleness, job.weight}, now_ns_);
  }
  for (SimulatedWorker& worker : workers_) worker.join(now_ns_);
  ROSE_TRY(step());
  for (std::int64_t round = 1; !is_over() && next_ns() <= world_.horizon_ns; ++round) {
    ROSE_TRY(advance());
    if (round % kRoundsBetweenQuestions == 0 && !go_on(now_ns_, events_)) break;
  }
  if (!is_over() && next_ns() > world_.horizon_ns) now_ns_ = world_.horizon_ns;
  // The workers report their remaining tokens, so that the sums are complete.
  for (SimulatedWorker& worker : workers_) worker.report(now_ns_);
  return step();
}

ClusterOutcome Cluster::outcome() const {
  ClusterOutcome outcome;
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
    for (const SimulatedTrajectory& trajectory : trainer.trajectories()) {
      one.started_ns.push_back(trajectory.started_ns);
      one.done_ns.push_back(trajectory.done_ns);
    }
    outcome.tokens_lost -= delivered_[job];
    outcome.jobs.push_back(std::move(one));
  }
  outcome.tokens_lost += reported_;
  for (const SimulatedWorker& worker : workers_) {
    outcome.tokens_by_worker.push_back(worker.tokens_generated());
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
  return event_queue_.is_empty() ? due_ns : std::min(due_ns, event_queue_.next_ns());
}

Status Cluster::advance() {
  now_ns_ = next_ns();
  // Events at the time of a step happen before the step.
  if (event_queue_.is_empty() || event_queue_.next_ns() > now_ns_) return step();
  handle(event_queue_.take());
  return {};
}

void Cluster::handle(const ScheduledEvent& event) {
  const std::int64_t subject = event.subject;
  switch (event.kind) {
    case EventKind::kBatchChanged:
      return worker_at(subject).on_batch_changed(event.mark, trajectories_, now_ns_);
    case EventKind::kReportDue:
      return worker_at(subject).on_report_due(trajectories_, now_ns_);
    case EventKind::kLendingChanged:
      return note_revocation(worker_at(subject).on_lending_changed(trajectories_, now_ns_));
    case EventKind::kStartedUp:
      return worker_at(subject).on_started_up(event.mark, now_ns_);
    case EventKind::kUpdateArrived:
      return worker_at(subject).on_update_arrived(event.mark, now_ns_);
    case EventKind::kUpdated:
      return worker_at(subject).on_updated(now_ns_);
    case EventKind::kToolDone:
      return inbox_.push(ready(trajectory_of(subject)), now_ns_);
    case EventKind::kLearned:
      return learned(subject);
  }
}

void Cluster::note_revocation(const std::vector<TrajectoryId>& victims) {
  if (victims.empty()) return;
  if (revocations_.empty() || revocations_.back().at_ns != now_ns_) {
    revocations_.push_back({now_ns_, 0, kNone});
  }
  for (const TrajectoryId id : victims) {
    trajectory_of(id).revocation = std::ssize(revocations_) - 1;
    ++revocations_.back().left;
  }
}

void Cluster::restarted(SimulatedTrajectory& trajectory) noexcept {
  if (trajectory.revocation == kNone) return;
  Revocation& revocation = revocations_[static_cast<std::size_t>(trajectory.revocation)];
  if (--revocation.left == 0) revocation.recovery_ns = now_ns_ - revocation.at_ns;
  trajectory.revocation = kNone;
}

bool Cluster::is_over() const noexcept {
  return std::all_of(trainers_.begin(), trainers_.end(),
                     [](const Trainer& trainer) { return trainer.is_over(); });
}

// ---- the driver ---------------------------------------------------------------------------------

Status Cluster::step() {
  stepped_ns_ = now_ns_;
  step_events_.clear();
  inbox_.swap(step_events_);
  create();
  do {
    ROSE_TRY(step_core());
    step_events_.clear();
    step_events_.swap(answers_);
    create();
  } while (!step_events_.empty());
  return {};
}

void Cluster::create() {
  TrajectoryId first = 0;
  for (Trainer& trainer : trainers_) {
    const auto count = static_cast<std::int64_t>(trainer.trajectories().size());
    while (trainer.created_so_far() < std::min(trainer.creatable(), count)) {
      const TrajectoryId id = first + trainer.created_so_far();
      SimulatedTrajectory& trajectory = trajectory_of(id);
      trajectory.phase = TrajectoryPhase::kWaiting;
      const JobSpec& job = job_of(trajectory);
      step_events_.push_back(
          TrajectoryCreated{id, job.group[static_cast<std::size_t>(trajectory.index)], job.job});
      trainer.created();
    }
    first += count;
  }
}

Status Cluster::step_core() {
  for (const Event& event : step_events_) {
    const auto* const progress = std::get_if<TurnProgress>(&event);
    if (progress == nullptr) continue;
    // Undelivered tokens of a dropped trajectory do not count as lost.
    const bool is_wanted = trajectory_of(progress->trajectory).phase == TrajectoryPhase::kAdmitted;
    reported_ += is_wanted ? progress->tokens : 0;
  }
  actions_.clear();
  ROSE_TRY(core_.step(step_events_, now_ns_, actions_));
  events_ += std::ssize(step_events_);
  if (world_.knobs.is_logged) log_.push_back({now_ns_, step_events_, actions_});
  for (const Action& action : actions_) {
    digest_.add(action);
    ROSE_TRY(std::visit([this](const auto& one) { return act(one); }, action));
  }
  return {};
}

Status Cluster::act(const Admit& action) {
  SimulatedTrajectory& trajectory = trajectory_of(action.trajectory);
  trajectory.phase = TrajectoryPhase::kAdmitted;
  trajectory.started_ns = now_ns_;
  trajectory.context_tokens = job_of(trajectory).input_tokens[turn_of(trajectory)];
  trainers_[static_cast<std::size_t>(trajectory.job)].admitted();
  answers_.push_back(ready(trajectory));
  return {};
}

Status Cluster::act(const Start& action) {
  SimulatedTrajectory& trajectory = trajectory_of(action.trajectory);
  ROSE_CHECK(action.first_token == trajectory.output_tokens && action.turn == trajectory.turn,
             "a turn would continue at the wrong token");
  ++decisions_;
  restarted(trajectory);
  const std::int64_t to_generate =
      job_of(trajectory).output_tokens[turn_of(trajectory)] - trajectory.output_tokens;
  if (to_generate == 0) {
    // The last token was delivered, but the report of the turn's end was lost.
    answers_.push_back(TurnEnded{action.trajectory, action.turn, action.worker, action.grant_epoch,
                                 TurnEnd::kFinished, trajectory.output_tokens});
    return {};
  }
  worker_at(place_of_.at(action.worker)).start(action, trajectory, to_generate, now_ns_);
  return {};
}

Status Cluster::act(const Stop& action) {
  worker_at(place_of_.at(action.worker)).stop(action.trajectory, trajectories_, now_ns_);
  return {};
}

Status Cluster::act(const Deliver& action) {
  SimulatedTrajectory& trajectory = trajectory_of(action.trajectory);
  const auto* const progress =
      std::get_if<TurnProgress>(&step_events_[static_cast<std::size_t>(action.event)]);
  ROSE_CHECK(progress != nullptr && progress->trajectory == action.trajectory &&
                 progress->first_token + action.skip == trajectory.output_tokens &&
                 action.skip + action.tokens <= progress->tokens,
             "a token would be missing or repeated");
  trajectory.output_tokens += action.tokens;
  trajectory.version_min = std::min(trajectory.version_min, progress->version_min);
  delivered_[static_cast<std::size_t>(trajectory.job)] += action.tokens;
  return {};
}

Status Cluster::act(const TurnDone& action) {
  SimulatedTrajectory& trajectory = trajectory_of(action.trajectory);
  const JobSpec& job = job_of(trajectory);
  const std::size_t turn = turn_of(trajectory);
  ROSE_CHECK(action.turn == trajectory.turn && trajectory.output_tokens == job.output_tokens[turn],
             "a turn would end without all its tokens");
  restarted(trajectory);
  trajectory.context_tokens += std::exchange(trajectory.output_tokens, 0);
  const auto index = static_cast<std::size_t>(trajectory.index);
  if (static_cast<std::int64_t>(turn) + 1 == job.first_turn[index + 1]) {
    trajectory.done_ns = now_ns_;
    answers_.push_back(TrajectoryEnded{action.trajectory});
    over(trajectory, TrajectoryPhase::kDone);
    return {};
  }
  ++trajectory.turn;
  trajectory.context_tokens += job.input_tokens[turn + 1];
  event_queue_.schedule(now_ns_ + job.tool_ns[turn], EventKind::kToolDone, action.trajectory);
  return {};
}

Status Cluster::act(const Drop& action) {
  SimulatedTrajectory& trajectory = trajectory_of(action.trajectory);
  restarted(trajectory);
  ++dropped_[static_cast<std::size_t>(trajectory.job)];
  over(trajectory, TrajectoryPhase::kDropped);
  return {};
}

std::size_t Cluster::turn_of(const SimulatedTrajectory& trajectory) const noexcept {
  const auto index = static_cast<std::size_t>(trajectory.index);
  return static_cast<std::size_t>(job_of(trajectory).first_turn[index] + trajectory.turn);
}

TurnReady Cluster::ready(const SimulatedTrajectory& trajectory) const noexcept {
  const TrajectoryId id = &trajectory - trajectories_.data();
  return {id, trajectory.turn, trajectory.context_tokens,
          turn_tokens_max_[static_cast<std::size_t>(trajectory.job)]};
}

// ---- the trainers -------------------------------------------------------------------------------

void Cluster::over(SimulatedTrajectory& trajectory, TrajectoryPhase phase) {
  trajectory.phase = phase;
  trainers_[static_cast<std::size_t>(trajectory.job)].over(trajectory.index);
  train(trajectory.job);
}

void Cluster::train(std::int64_t job) {
  Trainer& trainer = trainers_[static_cast<std::size_t>(job)];
  const JobSpec& spec = world_.jobs[static_cast<std::size_t>(job)];
  if (trainer.take()) event_queue_.schedule(now_ns_ + spec.train_ns, EventKind::kLearned, job);
  // The core receives the ends of these trajectories in the current step, and this event in a
  // later step.
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
