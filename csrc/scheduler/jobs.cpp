#include "scheduler/jobs.h"

#include <algorithm>

#include "scheduler/bounds.h"

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

bool Job::is_sound() const noexcept {
  const auto counts = {created, published, admitted, dropped_admitted, done, dropped, consumed};
  return std::all_of(counts.begin(), counts.end(), is_total) && number >= 0 &&
         batch_trajectories > 0 && batch_trajectories <= kCountMax && max_staleness >= 0 &&
         max_staleness < kTotalMax / batch_trajectories && weight > 0 && is_amount(weight) &&
         is_amount(1 / weight) && dropped_admitted <= dropped && consumed <= done &&
         (waiting.empty() || (waiting.begin()->first >= 0 && waiting.rbegin()->first < created)) &&
         outlook.is_sound() &&
         static_cast<std::int64_t>(outlook.fates().ended()) == done - consumed;
}

bool JobTable::is_sound() const noexcept {
  if (places_.size() != jobs_.size()) return false;
  for (std::size_t place = 0; place < jobs_.size(); ++place) {
    const Job& job = jobs_[place];
    if (find(job.number) != place || !job.is_sound() || !job.outlook.has(settings_)) return false;
  }
  return true;
}

void JobTable::join(const JobJoined& event) {
  Job& job = jobs_[place_of(event.job)];
  job.batch_trajectories = event.batch_trajectories;
  job.max_staleness = event.max_staleness;
  job.weight = event.weight;
}

}  // namespace rose::scheduler
