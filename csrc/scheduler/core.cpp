#include "scheduler/core.h"

#include <limits>
#include <string>

#include "scheduler/batch_check.h"

namespace rose::scheduler {

namespace {

// Latest time of a step, so that deadlines after it still fit 64 bits.
constexpr Nanoseconds kNowMax = std::numeric_limits<Nanoseconds>::max() / 4;

}  // namespace

Status Core::step(std::span<const Event> events, Nanoseconds now_ns, std::vector<Action>& actions) {
  if (now_ns < book_.now_ns || now_ns > kNowMax) {
    return Status::invalid_argument("step(now_ns=" + std::to_string(now_ns) + "): must be from " +
                                    std::to_string(book_.now_ns) +
                                    ", the time of the last step, to " + std::to_string(kNowMax));
  }
  ROSE_TRY(check(events, book_));
  book_.begin_step(now_ns, actions);
  rules_.apply(events);
  expire();
  book_.risk.settle(book_.workers);
  book_.drop_outdated();
  admit();
  dispatch_.place();
  dispatch_.rescue();
  ROSE_CHECK(book_.fault == nullptr, book_.fault);
  return {};
}

void Core::expire() {
  for (const std::size_t slot : book_.workers.expired(book_.now_ns)) book_.end_grant(slot);
  for (const TrajectoryId id : book_.take_overdue()) {
    // A trajectory that was recalled, started and recalled again at the same time is listed twice.
    Trajectory& trajectory = *book_.trajectories.find(id);
    if (trajectory.state == TrajectoryState::kRecalled) book_.requeue(trajectory);
  }
  if (book_.workers.take_back(book_.now_ns)) book_.has_changed = true;
}

void Core::admit() {
  for (std::size_t place = 0; place < book_.jobs.size(); ++place) admit_of(place);
}

void Core::admit_of(std::size_t place) {
  Job& job = book_.jobs[place];
  if (job.waiting.empty() || !job.can_admit()) return;
  const std::int64_t live_max = book_.live_max(place);
  while (!job.waiting.empty() && job.can_admit() && job.outlook.live() < live_max) {
    book_.admit(*book_.trajectories.find(job.waiting.begin()->second));
  }
}

std::int64_t Core::on_workers() const noexcept {
  const TrajectoryTable& trajectories = book_.trajectories;
  return trajectories.count(TrajectoryState::kRunning) +
         trajectories.count(TrajectoryState::kRecalled);
}

std::int64_t Core::turns_on(WorkerId worker) const noexcept {
  return book_.trajectories.count_if([worker](const Trajectory& each) {
    return is_on_worker(each.state) && each.run.worker == worker;
  });
}

bool Core::is_idle() const noexcept {
  const TrajectoryTable& trajectories = book_.trajectories;
  return on_workers() + trajectories.count(TrajectoryState::kWaiting) +
             trajectories.count(TrajectoryState::kQueued) ==
         0;
}

Stats Core::stats() const {
  const TrajectoryTable& trajectories = book_.trajectories;
  Stats stats{.counters = book_.counters,
              .fates = {},
              .waiting = trajectories.count(TrajectoryState::kWaiting),
              .environment = trajectories.count(TrajectoryState::kEnv),
              .queued = trajectories.count(TrajectoryState::kQueued),
              .running = trajectories.count(TrajectoryState::kRunning),
              .recalled = trajectories.count(TrajectoryState::kRecalled),
              .used_tokens = {},
              .hazards_per_s = {},
              .jobs = {},
              .exposure_s = book_.risk.exposure_s(book_.jobs.size()),
              .recovery_bound_s =
                  recovery_bound_s(book_.workers, trajectories, book_.jobs.size(), book_.settings)};
  for (std::size_t slot = 0; slot < book_.workers.size(); ++slot) {
    const Worker& worker = book_.workers[slot];
    if (worker.number != kNobody) {
      stats.used_tokens[worker.number] = worker.used_tokens;
      stats.hazards_per_s[worker.number] = book_.workers.columns().hazard_per_s[slot];
    }
  }
  for (std::size_t place = 0; place < book_.jobs.size(); ++place) {
    const Job& job = book_.jobs[place];
    stats.jobs[job.number] = {.published = job.published,
                              .admitted = job.admitted,
                              .done = job.done,
                              .dropped = job.dropped,
                              .consumed = job.consumed,
                              .stale = job.outlook.fates().stale().count(),
                              .length_bias = job.outlook.fates().length_bias()};
    stats.fates.add(job.outlook.fates());
  }
  return stats;
}

}  // namespace rose::scheduler
