#include "scheduler/trajectory_table.h"

namespace rose::scheduler {

namespace {

constexpr Nanoseconds kNsPerUs = 1000;
constexpr double kUsPerS = 1e6;

}  // namespace

Trajectory* TrajectoryTable::find(TrajectoryId id) noexcept {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &found->second;
}

const Trajectory* TrajectoryTable::find(TrajectoryId id) const noexcept {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &found->second;
}

Trajectory& TrajectoryTable::create(TrajectoryId id) {
  Trajectory& made = by_id_[id];
  made.id = id;
  ++counts_[static_cast<std::size_t>(made.state)];
  return made;
}

bool TrajectoryTable::move(Trajectory& trajectory, TrajectoryState to, Nanoseconds now_ns) {
  const TrajectoryState from = trajectory.state;
  if (!is_move(from, to)) return false;
  --counts_[static_cast<std::size_t>(from)];
  ++counts_[static_cast<std::size_t>(to)];
  trajectory.state = to;
  const bool was_started = from != TrajectoryState::kWaiting;
  if (!was_started && to == TrajectoryState::kEnv) {
    trajectory.started_ns = now_ns;
    add_start(now_ns, 1);
  }
  if (is_over(to)) {
    if (was_started) add_start(trajectory.started_ns, -1);
    by_id_.erase(trajectory.id);
  }
  return true;
}

double TrajectoryTable::mean_age_s(Nanoseconds now_ns) const noexcept {
  if (started_ == 0) return 0;
  const std::int64_t ages_us = started_ * micros_of(now_ns) - started_sum_us_;
  return static_cast<double>(ages_us) / static_cast<double>(started_) / kUsPerS;
}

void TrajectoryTable::add_start(Nanoseconds started_ns, std::int64_t by) noexcept {
  if (!has_origin_) {
    has_origin_ = true;
    origin_ns_ = started_ns;
  }
  started_ += by;
  started_sum_us_ += by * micros_of(started_ns);
}

std::int64_t TrajectoryTable::micros_of(Nanoseconds started_ns) const noexcept {
  return (started_ns - origin_ns_) / kNsPerUs;
}

}  // namespace rose::scheduler
