#include "scheduler/standard.h"

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <variant>

namespace rose::scheduler {

namespace {

// Larger counts and times are mistakes; below this every sum fits 64 bits.
constexpr double kMost = 1e9;
constexpr double kAboveZero = std::numeric_limits<double>::min();
constexpr double kBelowOne = 1 - std::numeric_limits<double>::epsilon();
// Factors from a given unit to the stored one.
constexpr double kCount = 1;
constexpr double kNsOfMs = kNsPerMs;
constexpr double kSOfMs = 1 / kMsPerS;

struct Knob {
  std::string_view name;
  std::variant<std::int64_t Settings::*, double Settings::*> at;
  double scale{kCount};
  double least{0};
  double most{kMost};
};

constexpr std::array kKnobs{
    Knob{"max_staleness", &Settings::max_staleness},
    Knob{"batch_trajectories", &Settings::batch_trajectories, kCount, 1},
    Knob{"worker_lag_max", &Settings::worker_lag_max},
    Knob{"recall_grace_ms", &Settings::recall_grace_ns, kNsOfMs},
    Knob{"retry_ms", &Settings::retry_ns, kNsOfMs},
    Knob{"attempts_max", &Settings::attempts_max, kCount, 1},
    Knob{"losses_max", &Settings::losses_max, kCount, 1},
    Knob{"stall_ms", &Settings::stall_ns, kNsOfMs, kAboveZero},
    Knob{"wait_max_ms", &Settings::wait_max_ns, kNsOfMs, kAboveZero},
    Knob{"tail_seats", &Settings::tail_seats},
    Knob{"urgent_time_weight", &Settings::urgent_time_weight},
    Knob{"urgent_risk_weight", &Settings::urgent_risk_weight},
    Knob{"staleness_s_per_version", &Settings::staleness_s_per_version},
    Knob{"leave_home_margin_s", &Settings::leave_home_margin_s},
    Knob{"hazard_per_s", &Settings::hazard_per_s},
    Knob{"hazard_prior_s", &Settings::hazard_prior_s, kCount, kAboveZero},
    Knob{"hazard_window_s", &Settings::hazard_window_s, kCount, kAboveZero},
    Knob{"hold_min_ms", &Settings::hold_min_ns, kNsOfMs},
    Knob{"hold_max_ms", &Settings::hold_max_ns, kNsOfMs},
    Knob{"flap_window_ms", &Settings::flap_window_ns, kNsOfMs},
    Knob{"exposure_max_s", &Settings::exposure_max_s, kCount, kAboveZero},
    Knob{"urgent_share_max", &Settings::urgent_share_max, kCount, kAboveZero},
    Knob{"burst_prefill_tokens", &Settings::burst_prefill_tokens, kCount, 1},
    Knob{"fair_lead_tokens", &Settings::fair_lead_tokens},
    Knob{"requeue_ms", &Settings::requeue_s, kSOfMs},
    Knob{"turn_tokens_prior", &Settings::turn_tokens_prior, kCount, kAboveZero},
    Knob{"turns_prior", &Settings::turns_prior, kCount, kAboveZero},
    Knob{"token_ms_prior", &Settings::token_s_prior, kSOfMs, kAboveZero},
    Knob{"tool_ms_prior", &Settings::tool_s_prior, kSOfMs},
    Knob{"job_weight", &Settings::job_weight, kCount, kAboveZero},
    Knob{"turn_window", &Settings::turn_window, kCount, 1},
    Knob{"version_window", &Settings::version_window, kCount, 1},
    Knob{"reserve_quantile", &Settings::reserve_quantile, kCount, kAboveZero, 1},
    Knob{"reserve_ahead_tokens", &Settings::reserve_ahead_tokens, kCount, 1},
    Knob{"longest_first", &Settings::longest_first},
    Knob{"pace_rate", &Settings::pace_rate, kCount, 0, kBelowOne},
    Knob{"displaced_share", &Settings::displaced_share, kCount, kAboveZero, 1},
    Knob{"cache_wait_ms", &Settings::cache_wait_ns, kNsOfMs},
    Knob{"move_contexts", &Settings::move_contexts},
    Knob{"mlfq_quantum_tokens", &Settings::mlfq_quantum_tokens, kCount, 1},
};

bool is_whole_number(const Knob& knob) {
  return std::holds_alternative<std::int64_t Settings::*>(knob.at) && knob.scale == kCount;
}

std::string rule_of(const Knob& knob) {
  const std::string kind = is_whole_number(knob) ? "a whole number " : "a number ";
  const std::string low =
      knob.least == kAboveZero ? "above 0" : "of at least " + text_of(knob.least);
  const std::string high =
      knob.most == kBelowOne ? " and below 1" : " and at most " + text_of(knob.most);
  return kind + low + high;
}

}  // namespace

Status tune(Settings& settings, std::string_view name, double value) {
  for (const Knob& knob : kKnobs) {
    if (knob.name != name) continue;
    const auto* const count = std::get_if<std::int64_t Settings::*>(&knob.at);
    const bool is_whole = !is_whole_number(knob) || value == std::floor(value);
    if (!(value >= knob.least && value <= knob.most) || !is_whole) {
      return Status::invalid_argument("SchedulerSettings(" + std::string{name} + "=" +
                                      text_of(value) + "): must be " + rule_of(knob));
    }
    if (count != nullptr) {
      settings.*(*count) = std::llround(value * knob.scale);
    } else {
      settings.*std::get<double Settings::*>(knob.at) = value * knob.scale;
    }
    return {};
  }
  return Status::invalid_argument("the scheduler has no constant " + std::string{name});
}

std::vector<std::pair<std::string_view, double>> tuned(const Settings& settings) {
  std::vector<std::pair<std::string_view, double>> values;
  for (const Knob& knob : kKnobs) {
    const double stored =
        std::visit([&](auto at) { return static_cast<double>(settings.*at); }, knob.at);
    values.emplace_back(knob.name, stored / knob.scale);
  }
  return values;
}

}  // namespace rose::scheduler
