#include "compute/creditor.h"

#include <algorithm>

namespace rose::compute {

namespace {

// Shortest sleep between two calls of look(). Without it, a policy with a retry_after_ns of 0 would
// make the thread spin.
constexpr Nanoseconds kShortestSleepNs = 50'000;

}  // namespace

Creditor::Creditor(std::shared_ptr<HostGate> gate, std::shared_ptr<CreditPolicy> policy,
                   std::shared_ptr<const Clock> clock, CreditorConfig config,
                   std::shared_ptr<Watchdog> watchdog) noexcept
    : gate_{std::move(gate)},
      policy_{std::move(policy)},
      clock_{std::move(clock)},
      config_{config},
      watchdog_{std::move(watchdog)} {
  gate_->set_low_water(config_.low_water());
}

Creditor::~Creditor() { stop(); }

Status Creditor::start() noexcept {
  if (thread_.is_running()) return Status::invalid_argument("the creditor was started already");
  stopping_.store(false);
  return thread_.start("the creditor", [this] { run(); });
}

void Creditor::stop() noexcept {
  if (!owner_.is_here()) return;
  stopping_.store(true);
  gate_->ring_demand();
  thread_.join();
}

void Creditor::notify() noexcept { gate_->ring_demand(); }

void Creditor::run() noexcept {
  while (!stopping_.load()) {
    // Read before look(), so that a ring_demand() during look() makes the wait return at once.
    const std::uint32_t seen = gate_->demand();
    Nanoseconds sleep_ns = look();
    if (watchdog_ != nullptr) sleep_ns = std::min(sleep_ns, watchdog_->look());
    if (stopping_.load()) return;
    gate_->wait_demand(seen, std::clamp(sleep_ns, kShortestSleepNs, config_.poll_ns));
  }
}

Nanoseconds Creditor::look() noexcept {
  if (gate_->is_shut_down() || !gate_->is_in_step()) return config_.poll_ns;
  const std::scoped_lock one_decides{gate_->granting()};
  CreditRequest request;
  // Invariant 3: read the epoch before everything that the policy reads.
  request.close_epoch = gate_->close_epoch();
  const bool was_open = gate_->is_open();
  request.outstanding = was_open ? gate_->credit_left() : 0;
  request.passed = gate_->passed();
  request.now_ns = clock_->now_ns();
  if (request.outstanding > config_.low_water()) return config_.poll_ns;

  const CreditDecision decision = policy_->decide(request);
  if (decision.segments == 0) {
    refusals_.fetch_add(1);
    return decision.retry_after_ns;
  }
  const std::uint32_t segments = std::min(decision.segments, config_.max_segments);
  // The quantum starts at the `passed` that the policy saw, so segments started since then count as
  // part of the quantum. If the gate is closed, set_credit() also removes credit that was left when
  // the gate closed.
  const bool is_set =
      gate_->set_credit(request.passed + (config_.has_credit ? segments : kUnlimitedCredit));
  (is_set && gate_->open(request.close_epoch) ? grants_ : overtaken_).fetch_add(1);
  return config_.poll_ns;
}

}  // namespace rose::compute
