#include "coserving/segment_evidence.h"

#include <algorithm>

namespace rose::coserving {

SegmentWait SegmentEvidence::wait(std::uint32_t borrower) noexcept {
  const slo::WaitTerms terms = log_->begin_wait();
  const auto waited_ns = gate_->wait_parked(terms.limit_ns);
  SegmentWait out{.waited_ns = std::min(waited_ns.value_or(terms.limit_ns), terms.limit_ns),
                  .has_ended = waited_ns.has_value()};
  out.excess_ns = log_->end_wait(terms, out.waited_ns, borrower);
  if (out.has_ended && out.excess_ns == 0) return out;
  note(out.waited_ns, out.has_ended);
  out.is_spent = log_->wait_spent_ns() >= log_->header().wait_budget_ns;
  return out;
}

void SegmentEvidence::note(Nanoseconds waited_ns, bool has_ended) noexcept {
  const std::scoped_lock lock{mutex_};
  if (has_ended && trial_) waited_ns_ = 0;
  trial_.reset();
  waited_ns_ = std::max({waited_ns_, waited_ns, has_ended ? 0 : measured_ns_});
  waited_at_ns_ = clock_->now_ns();
}

SegmentLength SegmentEvidence::length() noexcept {
  const Nanoseconds newest_ns = clock_->now_ns() - gate_->since_segment_ns();
  const std::scoped_lock lock{mutex_};
  if (trial_ && gate_->passed() != *trial_ && !gate_->is_running()) {
    trial_.reset();
    since_ns_ = tried_at_ns_;
    waited_ns_ = 0;
  }
  if (newest_ns - waited_at_ns_ > compute::DurationRing::kRecentNs) waited_ns_ = 0;
  const Nanoseconds page_ns = gate_->recent_segment_ns(config_.share, since_ns_);
  if (page_ns > 0) measured_ns_ = page_ns;
  const Nanoseconds upper_ns = std::max(measured_ns_, waited_ns_);
  if (upper_ns == 0) return {.upper_ms = config_.prior_ms, .is_measured = false};
  return {.upper_ms = static_cast<double>(upper_ns) / 1e6, .is_measured = true};
}

void SegmentEvidence::fits() noexcept {
  const std::scoped_lock lock{mutex_};
  pause_ns_ = 0;
}

bool SegmentEvidence::may_try() noexcept {
  const Nanoseconds now_ns = clock_->now_ns();
  const std::scoped_lock lock{mutex_};
  if (pause_ns_ == 0) {
    pause_ns_ = kFirstTrialNs;
    try_at_ns_ = now_ns + pause_ns_;
  }
  if (trial_ && gate_->passed() == *trial_) trial_.reset();  // The gate closed before it began.
  if (trial_ || now_ns < try_at_ns_) return false;
  // If the wait budget refuses the trial, the next one is not asked for at once.
  try_at_ns_ = now_ns + kFirstTrialNs;
  return true;
}

void SegmentEvidence::tried(std::uint32_t passed) noexcept {
  const Nanoseconds now_ns = clock_->now_ns();
  const std::scoped_lock lock{mutex_};
  trial_ = passed;
  tried_at_ns_ = now_ns;
  pause_ns_ = std::min(2 * pause_ns_, kTrialMaxNs);
  try_at_ns_ = now_ns + pause_ns_;
}

}  // namespace rose::coserving
