#include "scheduler/jobs.h"

namespace rose::scheduler {

std::optional<std::size_t> JobTable::find(JobId number) const noexcept {
  const auto found = places_.find(number);
  return found == places_.end() ? std::nullopt : std::optional{found->second};
}

std::size_t JobTable::place_of(JobId number) {
  const auto [found, is_new] = places_.try_emplace(number, jobs_.size());
  if (is_new) {
    Job& job = jobs_.emplace_back(settings_);
    job.number = number;
    job.batch_trajectories = settings_.batch_trajectories;
    job.max_staleness = settings_.max_staleness;
  }
  return found->second;
}

void JobTable::join(const JobJoined& event) {
  Job& job = jobs_[place_of(event.job)];
  job.batch_trajectories = event.batch_trajectories;
  job.max_staleness = event.max_staleness;
  job.weight = event.weight;
}

}  // namespace rose::scheduler
