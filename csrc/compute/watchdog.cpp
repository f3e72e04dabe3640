#include "compute/watchdog.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace rose::compute {

namespace {

constexpr Nanoseconds kNothingToDoNs = std::numeric_limits<Nanoseconds>::max();
// Period of looks at a forced opening, which is withdrawn once its segment has started.
constexpr Nanoseconds kTakeBackNs = 1'000'000;

}  // namespace

Watchdog::Watchdog(std::shared_ptr<HostGate> gate, std::shared_ptr<ForcedLog> log,
                   std::shared_ptr<const Clock> clock, Nanoseconds after_ns) noexcept
    : gate_{std::move(gate)}, log_{std::move(log)}, clock_{std::move(clock)}, after_ns_{after_ns} {}

void Watchdog::enter() noexcept {
  const std::scoped_lock lock{mutex_};
  if (declared_.fetch_add(1) != 0) return;
  still_since_ns_ = clock_->now_ns();
  seen_passed_ = gate_->passed();
}

void Watchdog::leave() noexcept {
  const std::scoped_lock lock{mutex_};
  if (!is_declared() || declared_.fetch_sub(1) != 1) return;
  if (is_forced_) take_back();
}

Nanoseconds Watchdog::look() noexcept {
  const std::scoped_lock lock{mutex_};
  if (!is_declared()) return kNothingToDoNs;
  if (is_forced_ && gate_->passed() != forced_passed_) take_back();
  const Nanoseconds now_ns = clock_->now_ns();
  if (!is_stuck() || gate_->passed() != seen_passed_) {
    still_since_ns_ = now_ns;
    seen_passed_ = gate_->passed();
  }
  const Nanoseconds left_ns = after_ns_ - (now_ns - still_since_ns_);
  if (left_ns > 0) return is_forced_ ? std::min(left_ns, kTakeBackNs) : left_ns;
  still_since_ns_ = now_ns;
  force();
  return kTakeBackNs;
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
  closed_because_ = gate_->close_reason();
}

void Watchdog::take_back() noexcept {
  is_forced_ = false;
  if (gate_->is_open() && gate_->close_epoch() == forced_epoch_) gate_->close(closed_because_);
}

}  // namespace rose::compute
