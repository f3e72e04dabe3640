#include "compute/slack_lender.h"

#include <algorithm>

namespace rose::compute {

namespace {

// Period at which wait_spent() reads `passed`, because a device writes `passed` without waking the
// sleeper. A borrower on a CPU wakes the sleeper earlier.
constexpr Nanoseconds kLookNs = 200'000;

}  // namespace

std::optional<Offer> SlackLender::offer() noexcept {
  if (gate_->is_shut_down() || !gate_->is_in_step()) return std::nullopt;
  // If another thread is deciding, serving does not wait for it.
  const std::unique_lock one_decides{gate_->granting(), std::try_to_lock};
  if (!one_decides.owns_lock() || is_stopped_) return std::nullopt;
  CreditRequest request;
  // As in Creditor, invariant 3: read the epoch before everything that the policy reads.
  request.close_epoch = gate_->close_epoch();
  if (gate_->is_open() || gate_->is_running()) return std::nullopt;
  request.passed = gate_->passed();
  request.now_ns = clock_->now_ns();
  const CreditDecision decision = policy_->decide(request);
  if (decision.segments == 0) return std::nullopt;
  const std::uint32_t unseen = gate_->is_on_device() ? 1 : 0;
  const std::uint32_t segments = std::min(decision.segments, config_.max_segments) - unseen;
  if (segments == 0) return std::nullopt;
  const std::uint32_t credit = config_.has_credit ? segments : kUnlimitedCredit;
  if (!gate_->set_credit(request.passed + credit)) return std::nullopt;
  if (!gate_->open(request.close_epoch)) return std::nullopt;
  return Offer{.segments = segments,
               .passed = request.passed,
               .close_epoch = request.close_epoch,
               .until_ns = decision.until_ns};
}

void SlackLender::withdraw() noexcept {
  if (gate_->is_open()) gate_->close(CloseReason::kStep);
}

Nanoseconds SlackLender::lend() noexcept {
  auto made = offer();
  if (!made) return 0;
  const Nanoseconds from_ns = clock_->now_ns();
  for (; made; made = offer()) {
    const bool is_spent = wait_spent(*made);
    withdraw();
    if (!is_spent) break;
  }
  return clock_->now_ns() - from_ns;
}

void SlackLender::set_stopped(bool is) noexcept {
  const std::scoped_lock one_decides{gate_->granting()};
  is_stopped_ = is;
}

bool SlackLender::wait_spent(const Offer& offer) noexcept {
  const Nanoseconds start_by_ns = clock_->now_ns() + config_.start_ns;
  for (;;) {
    // Read before the checks below, so that a ring_demand() meanwhile makes the wait return at
    // once.
    const std::uint32_t seen = gate_->demand();
    const Nanoseconds now_ns = clock_->now_ns();
    const bool is_ours = gate_->is_open() && gate_->close_epoch() == offer.close_epoch;
    if (!is_ours || now_ns >= offer.until_ns || !gate_->is_in_step()) return false;
    if (gate_->passed() == offer.passed && now_ns >= start_by_ns) return false;
    const Nanoseconds left_ns = offer.until_ns - now_ns;
    if (gate_->credit_left() == 0) {
      // On a device the last segment has started, but may still run. The quantum includes its whole
      // duration, so serving need not wait for its end here.
      if (gate_->is_on_device()) return false;
      return gate_->wait_parked(left_ns).has_value() && gate_->is_open();
    }
    gate_->wait_demand(seen, std::min(left_ns, kLookNs));
  }
}

}  // namespace rose::compute
