#include "compute/watchdog.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "driver/stream.h"

namespace rose::compute {

namespace {

constexpr Nanoseconds kNothingToDoNs = std::numeric_limits<Nanoseconds>::max();
// Period of looks at a forced opening, which is withdrawn once its segment has started.
constexpr Nanoseconds kTakeBackNs = 1'000'000;
// Longest time between two looks at serving's streams: ten looks must see them idle.
constexpr Nanoseconds kStreamLookNs = Watchdog::kUndeclaredNs / 10;

}  // namespace

Watchdog::Watchdog(std::shared_ptr<HostGate> gate, std::shared_ptr<ForcedLog> log,
                   std::shared_ptr<const Clock> clock, Nanoseconds after_ns) noexcept
    : gate_{std::move(gate)}, log_{std::move(log)}, clock_{std::move(clock)}, after_ns_{after_ns} {}

void Watchdog::enter() noexcept {
  const std::scoped_lock lock{mutex_};
  if (declared_.fetch_add(1) != 0) return;
  begin_standstill();
}

void Watchdog::leave() noexcept {
  const std::scoped_lock lock{mutex_};
  if (!is_declared() || declared_.fetch_sub(1) != 1) return;
  if (is_forced_) take_back();
}

Nanoseconds Watchdog::look() noexcept {
  // Reads the driver before the lock, which serving's thread may need.
  const std::uint64_t progress = !is_declared() && is_stuck() && work_ ? work_->progress() : 0;
  const bool is_undeclared = progress != 0 && is_idle();
  const std::scoped_lock lock{mutex_};
  const bool has_call = is_declared();
  const Nanoseconds now_ns = clock_->now_ns();
  if (is_forced_) {
    const bool is_old = !has_call && now_ns - forced_at_ns_ >= kUndeclaredNs;
    if (gate_->passed() != forced_passed_ || is_old) take_back();
  }
  const bool is_due = has_call || is_undeclared;
  if (!is_due || !is_stuck() || gate_->passed() != seen_passed_ || progress != seen_progress_) {
    begin_standstill();
    seen_progress_ = progress;
  }
  if (!is_due) return is_forced_ ? kTakeBackNs : kNothingToDoNs;
  const Nanoseconds left_ns = (has_call ? after_ns_ : kUndeclaredNs) - (now_ns - still_since_ns_);
  if (left_ns > 0) {
    if (is_forced_) return std::min(left_ns, kTakeBackNs);
    return has_call ? left_ns : std::min(left_ns, kStreamLookNs);
  }
  begin_standstill();
  force();
  if (is_forced_ && !has_call) undeclared_.fetch_add(1);
  return kTakeBackNs;
}

void Watchdog::begin_standstill() noexcept {
  still_since_ns_ = clock_->now_ns();
  seen_passed_ = gate_->passed();
}

// Returns true if all of serving's streams were seen idle. A failed query is no evidence.
bool Watchdog::is_idle() const noexcept {
  return std::ranges::all_of(work_->streams, [&](CUstream stream) {
    const Result<bool> captures = driver::is_capturing(*work_->device, stream);
    if (!captures.ok() || captures.value()) return false;
    const Result<bool> idle = driver::is_idle(*work_->device, stream);
    return idle.ok() && idle.value();
  });
}

// Returns true if a step holds the device, and no segment of the step runs or may start. On a
// device the host sees only the start of segments, so a long segment can look stuck; then one
// segment is let through without need.
bool Watchdog::is_stuck() const noexcept {
  if (!gate_->is_mid_step() || gate_->is_running() || gate_->is_shut_down()) return false;
  return !gate_->is_open() || gate_->credit_left() == 0;
}

void Watchdog::force() noexcept {
  const std::scoped_lock one_decides{gate_->granting()};
  // Read the epoch first, so that a close after any of the following reads wins.
  const std::uint32_t epoch = gate_->close_epoch();
  const std::uint32_t passed = gate_->passed();
  if (log_ != nullptr) log_->forced(passed, epoch);
  if (!gate_->set_credit(passed + 1) || !gate_->open(epoch)) return;
  gate_->count_forced_opening();
  is_forced_ = true;
  forced_epoch_ = epoch;
  forced_passed_ = passed;
  forced_at_ns_ = clock_->now_ns();
  closed_because_ = gate_->close_reason();
}

void Watchdog::take_back() noexcept {
  is_forced_ = false;
  if (gate_->is_open() && gate_->close_epoch() == forced_epoch_) gate_->close(closed_because_);
}

}  // namespace rose::compute
