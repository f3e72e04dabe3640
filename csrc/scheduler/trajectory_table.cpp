#include "scheduler/trajectory_table.h"

#include <algorithm>
#include <array>

#include "scheduler/bounds.h"

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

bool Trajectory::is_sound() const noexcept {
  const auto tokens = {context_tokens,     max_new_tokens,     known_tokens,
                       computed_tokens,    home.cached_tokens, run.prefill_tokens,
                       run.restart_tokens, run.exposed.tokens, run.reserved_tokens,
                       run.exposed.urgent, run.first_token};
  const auto totals = {said_tokens, ticket, version_min, turn, tries, attempts};
  const auto times = {started_ns,      turn_ns,        queued_ns,         queue_key.order_ns,
                      run.stall_at_ns, run.started_ns, recalled_until_ns, avoided.until_ns};
  return std::all_of(tokens.begin(), tokens.end(),
                     [](std::int64_t each) { return each >= 0 && each <= 4 * kCountMax; }) &&
         std::all_of(totals.begin(), totals.end(), is_total) &&
         (awaited_tokens == kTokensUnknown || is_total(awaited_tokens)) &&
         std::all_of(times.begin(), times.end(), is_time) && known_tokens <= max_new_tokens &&
         is_amount(run.foreseen_wait_s) && is_amount(run.foreseen_token_s) &&
         run.exposed.prefill_tokens_per_s == 0 && !is_over(state);
}

bool TrajectoryTable::is_sound(std::size_t jobs, std::size_t slots,
                               std::size_t domains) const noexcept {
  std::array<std::int64_t, kTrajectoryStates> counts{};
  for (const auto& [id, trajectory] : by_id_) {
    const Run& run = trajectory.run;
    const bool is_one = id >= 0 && trajectory.id == id && trajectory.job < jobs &&
                        (!run.is_held || (run.slot < slots && run.domain < domains)) &&
                        trajectory.is_sound();
    if (!is_one) return false;
    ++counts[static_cast<std::size_t>(trajectory.state)];
  }
  // No trajectory of the table has these states, so their counts cannot be checked against it.
  for (const auto over : {TrajectoryState::kDone, TrajectoryState::kDropped}) {
    if (!is_total(count(over))) return false;
    counts[static_cast<std::size_t>(over)] = count(over);
  }
  return counts == counts_;
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
