#include "scheduler/trajectory_table.h"

namespace rose::scheduler {

namespace {

constexpr std::size_t kCacheLine = 64;

}  // namespace

Trajectory* TrajectoryTable::find(TrajectoryId id) noexcept {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &found->second;
}

const Trajectory* TrajectoryTable::find(TrajectoryId id) const noexcept {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &found->second;
}

void TrajectoryTable::prefetch(TrajectoryId id) const noexcept {
  const Trajectory* const found = find(id);
  if (found == nullptr) return;
  const char* const begin = reinterpret_cast<const char*>(found);
  for (std::size_t offset = 0; offset < sizeof(Trajectory); offset += kCacheLine) {
    __builtin_prefetch(begin + offset);
  }
}

Trajectory& TrajectoryTable::create(TrajectoryId id, std::int64_t group, std::size_t job) {
  Trajectory& made = by_id_[id];
  made.id = id;
  made.group = group;
  made.job = job;
  ++counts_[static_cast<std::size_t>(made.state)];
  return made;
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
