#include "scheduler/trajectory_table.h"

#include <algorithm>

namespace rose::scheduler {

Trajectory* TrajectoryTable::find(TrajectoryId id) noexcept {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &found->second;
}

const Trajectory* TrajectoryTable::find(TrajectoryId id) const noexcept {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &found->second;
}

Trajectory& TrajectoryTable::create(TrajectoryId id, std::int64_t group, std::size_t job) {
  Trajectory& made = by_id_[id];
  made.id = id;
  made.group = group;
  made.job = job;
  ++counts_[static_cast<std::size_t>(made.state)];
  return made;
}

bool TrajectoryTable::is_sound(std::size_t jobs, std::size_t slots) const noexcept {
  return std::all_of(by_id_.begin(), by_id_.end(), [&](const auto& entry) {
    const auto& [id, trajectory] = entry;
    return trajectory.id == id && trajectory.job < jobs &&
           (!trajectory.run.is_held || trajectory.run.slot < slots);
  });
}

bool TrajectoryTable::move(Trajectory& trajectory, TrajectoryState to, Nanoseconds now_ns) {
  const TrajectoryState from = trajectory.state;
  if (!is_move(from, to)) return false;
  --counts_[static_cast<std::size_t>(from)];
  ++counts_[static_cast<std::size_t>(to)];
  trajectory.state = to;
  if (from == TrajectoryState::kWaiting && to == TrajectoryState::kEnv) {
    trajectory.started_ns = now_ns;
  }
  if (is_over(to)) by_id_.erase(trajectory.id);
  return true;
}

}  // namespace rose::scheduler
