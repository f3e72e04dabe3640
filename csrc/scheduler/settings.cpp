#include "scheduler/settings.h"

#include <algorithm>

#include "scheduler/bounds.h"
#include "scheduler/events.h"

namespace rose::scheduler {

bool Settings::is_sound() const noexcept {
  const auto counts = {batch_trajectories,   turn_window,         version_window,
                       reserve_ahead_tokens, mlfq_quantum_tokens, burst_prefill_tokens,
                       attempts_max};
  const auto may_be_zero = {max_staleness, worker_lag_max, fair_lead_tokens};
  const auto times = {recall_grace_ns, retry_ns,    stall_ns,       wait_max_ns,
                      hold_min_ns,     hold_max_ns, flap_window_ns, cache_wait_ns};
  const auto amounts = {tail_seats,       urgent_time_weight, urgent_risk_weight,
                        hazard_per_s,     hazard_prior_s,     staleness_s_per_version,
                        hazard_window_s,  exposure_max_s,     leave_home_margin_s,
                        urgent_share_max, requeue_s,          turn_tokens_prior,
                        turns_prior,      token_s_prior,      tool_s_prior,
                        job_weight,       longest_first,      move_contexts};
  const auto is_count = [](std::int64_t value) { return value >= 0 && value <= kCountMax; };
  return std::all_of(counts.begin(), counts.end(),
                     [&](std::int64_t value) { return value > 0 && is_count(value); }) &&
         std::all_of(may_be_zero.begin(), may_be_zero.end(), is_count) &&
         std::all_of(times.begin(), times.end(), is_total) &&
         std::all_of(amounts.begin(), amounts.end(), is_amount) && reserve_quantile > 0 &&
         reserve_quantile <= 1 && pace_rate >= 0 && pace_rate < 1 && displaced_share > 0 &&
         displaced_share <= 1;
}

}  // namespace rose::scheduler
