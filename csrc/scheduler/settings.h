// The settings of the scheduler; scheduler/standard.h documents and checks them.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "scheduler/image.h"

namespace rose::scheduler {

// Placement policy: chooses the worker of a turn. In addition, only kJoint limits admission by
// memory, and only kJoint lets turns wait for new weights or in order to spare caches. Only kMlfq
// changes the queue's order. The home of a turn is the worker whose cache has the context of its
// trajectory; the home is warm while that cache is valid.
enum class PlacementPolicy : std::uint8_t {
  kJoint = 0,          // own time + externality + risk + staleness, weighted by urgency
  kRosePublished,      // warm home, else least loaded dedicated, else least loaded borrowed
  kLeastLoadedSticky,  // home while it has room and few more turns, else the least loaded
  kMlfq,               // places like kLeastLoadedSticky; least served first, see mlfq.h
};

template <>
struct EnumSize<PlacementPolicy> {
  static constexpr std::size_t value = 4;
};

struct Settings {
  std::int64_t max_staleness{1};
  std::int64_t batch_trajectories{8};
  std::int64_t worker_lag_max{1};
  Nanoseconds recall_grace_ns{0};
  Nanoseconds retry_ns{0};
  std::int64_t attempts_max{3};
  std::int64_t losses_max{2};
  Nanoseconds stall_ns{0};
  Nanoseconds wait_max_ns{0};
  double tail_seats{1};
  double urgent_time_weight{1};
  double urgent_risk_weight{1};
  double staleness_s_per_version{0};
  double leave_home_margin_s{0};
  double hazard_per_s{0};
  double hazard_prior_s{1e9};
  double hazard_window_s{1e9};
  Nanoseconds hold_min_ns{0};
  Nanoseconds hold_max_ns{0};
  Nanoseconds flap_window_ns{0};
  double exposure_max_s{1e9};
  double urgent_share_max{1};
  std::int64_t burst_prefill_tokens{std::int64_t{1} << 40};
  std::int64_t fair_lead_tokens{0};
  double requeue_s{0};
  double turn_tokens_prior{1};
  double turns_prior{1};
  double token_s_prior{0};
  double tool_s_prior{0};
  double job_weight{1};
  std::int64_t turn_window{1};
  std::int64_t version_window{1};
  double reserve_quantile{1};
  std::int64_t reserve_ahead_tokens{1};
  double longest_first{0};
  double pace_rate{0};
  double displaced_share{1};
  Nanoseconds cache_wait_ns{0};
  double move_contexts{0};
  std::int64_t mlfq_quantum_tokens{1};

  template <typename Image>
  void image(Image& image) {
    image(max_staleness, batch_trajectories, worker_lag_max, recall_grace_ns, retry_ns,
          attempts_max, losses_max, stall_ns, wait_max_ns, tail_seats, urgent_time_weight,
          urgent_risk_weight, staleness_s_per_version, leave_home_margin_s, hazard_per_s,
          hazard_prior_s, hazard_window_s, hold_min_ns, hold_max_ns, flap_window_ns, exposure_max_s,
          urgent_share_max, burst_prefill_tokens, fair_lead_tokens, requeue_s, turn_tokens_prior,
          turns_prior, token_s_prior, tool_s_prior, job_weight, turn_window, version_window,
          reserve_quantile, reserve_ahead_tokens, longest_first, pace_rate, displaced_share,
          cache_wait_ns, move_contexts, mlfq_quantum_tokens);
  }
};

}  // namespace rose::scheduler
