#include "sim/trainer.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace rose::sim {

Trainer::Trainer(const JobSpec& spec, std::span<SimulatedTrajectory> trajectories,
                 std::int64_t versions)
    : spec_{spec},
      trajectories_{trajectories},
      versions_{versions},
      group_of_(trajectories.size()),
      used_by_(trajectories.size(), kNone),
      staleness_(trajectories.size(), kNone) {
  for (std::size_t i = 0; i < trajectories.size(); ++i) {
    const bool is_new = i == 0 || spec.group[i] != spec.group[i - 1];
    if (is_new) groups_.push_back({static_cast<std::int64_t>(i), 0, 0});
    group_of_[i] = groups_.size() - 1;
    ++groups_.back().size;
    ++groups_.back().left;
    group_max_ = std::max(group_max_, groups_.back().size);
  }
  if (is_asynchronous()) {
    creatable_ = spec_.batch;
  } else {
    allow_batch();
  }
}

void Trainer::admitted() noexcept {
  // Each admission makes room for a new trajectory, so that one batch of them is always waiting.
  if (is_asynchronous()) ++creatable_;
}

void Trainer::over(std::int64_t index) {
  ++over_;
  const std::size_t place = group_of_[static_cast<std::size_t>(index)];
  Group& group = groups_[place];
  if (--group.left > 0) return;
  // While a version is being trained, the group is not sifted yet: publish() does that, because the
  // new version can make more trajectories stale.
  if (is_learning_ || sift(group)) {
    ready_.push_back(place);
    ready_trajectories_ += group.size;
  }
}

bool Trainer::take() {
  if (is_learning_ || published() == versions_) return false;
  if (!is_asynchronous() && over_ < creatable_) return false;
  if (is_asynchronous() && ready_trajectories_ <= spec_.batch - group_max_) return false;
  batch_.clear();
  std::int64_t taken = 0;
  while (!ready_.empty() && taken + groups_[ready_.front()].size <= spec_.batch) {
    const Group& group = groups_[ready_.front()];
    taken += group.size;
    learn_from(group);
    ready_.pop_front();
  }
  ready_trajectories_ -= taken;
  is_learning_ = !batch_.empty();
  if (spec_.mode == TrainerMode::kOneStepOff || (!is_asynchronous() && !is_learning_)) {
    allow_batch();
  }
  return is_learning_;
}

std::int64_t Trainer::publish(Nanoseconds now_ns) {
  Nanoseconds first_ns = std::numeric_limits<Nanoseconds>::max();
  Nanoseconds last_ns = 0;
  for (const std::int64_t index : batch_) {
    const SimulatedTrajectory& trajectory = trajectories_[static_cast<std::size_t>(index)];
    first_ns = std::min(first_ns, trajectory.started_ns);
    last_ns = std::max(last_ns, trajectory.done_ns);
  }
  rollouts_.push_back({now_ns, last_ns - first_ns});
  is_learning_ = false;
  sift_all();
  if (spec_.mode == TrainerMode::kSynchronous) allow_batch();
  return static_cast<std::int64_t>(batch_.size());
}

std::int64_t Trainer::thrown_away() noexcept { return std::exchange(thrown_away_, 0); }

bool Trainer::is_over() const noexcept {
  if (published() == versions_) return true;
  return over_ == std::ssize(trajectories_) && !is_learning_;
}

void Trainer::allow_batch() {
  std::int64_t allowed = 0;
  while (allowed_groups_ < groups_.size() &&
         allowed + groups_[allowed_groups_].size <= spec_.batch) {
    allowed += groups_[allowed_groups_++].size;
  }
  creatable_ += allowed;
}

bool Trainer::sift(const Group& group) {
  bool is_useful = false;
  for (std::int64_t index = group.first; index < group.first + group.size; ++index) {
    const auto place = static_cast<std::size_t>(index);
    if (trajectories_[place].phase != TrajectoryPhase::kDone || staleness_[place] != kNone)
      continue;
    const std::int64_t age = published() - trajectories_[place].version_min;
    if (age <= spec_.max_staleness) {
      is_useful = true;
      continue;
    }
    staleness_[place] = age;
    ++thrown_away_;
  }
  return is_useful;
}

void Trainer::sift_all() {
  std::deque<std::size_t> useful;
  ready_trajectories_ = 0;
  for (const std::size_t place : ready_) {
    if (!sift(groups_[place])) continue;
    useful.push_back(place);
    ready_trajectories_ += groups_[place].size;
  }
  ready_ = std::move(useful);
}

void Trainer::learn_from(const Group& group) {
  for (std::int64_t index = group.first; index < group.first + group.size; ++index) {
    const auto place = static_cast<std::size_t>(index);
    if (trajectories_[place].phase != TrajectoryPhase::kDone || staleness_[place] != kNone)
      continue;
    staleness_[place] = published() - trajectories_[place].version_min;
    used_by_[place] = published() + 1;
    batch_.push_back(index);
  }
}

}  // namespace rose::sim
