#include "scheduler/outlook.h"

#include <algorithm>
#include <cmath>

namespace rose::scheduler {

namespace {

// Upper bound of a turn's queue credit, in seconds: in nanoseconds the credit then fits 64 bits.
constexpr double kOrderMaxS = 1e6;
constexpr auto kTokensMax = static_cast<double>(2 * kCountMax);

double seconds(Nanoseconds from_ns, Nanoseconds to_ns) noexcept {
  return static_cast<double>(to_ns - from_ns) / kNsPerS;
}

}  // namespace

Outlook::Outlook(const Settings& settings) noexcept
    : settings_{settings},
      predictor_{settings},
      contexts_{0, settings.turn_window},
      clock_{settings.version_window} {}

void Outlook::create(const Trajectory& trajectory) { predictor_.enter(trajectory.group); }

void Outlook::admit(Trajectory& trajectory, Nanoseconds now_ns) {
  expect(trajectory, now_ns);
  trajectory.life_number = lives_.enter(trajectory.life_s);
}

void Outlook::queue(Trajectory& trajectory, Nanoseconds now_ns) {
  const bool is_new = trajectory.tries == 0;
  if (is_new && trajectory.turn > 0) {
    predictor_.observe_tool(trajectory.group, seconds(trajectory.turn_ns, now_ns));
  }
  if (is_new) trajectory.turn_ns = now_ns;
  expect(trajectory, now_ns);
  lives_.change(trajectory.life_number, trajectory.life_s);
}

void Outlook::finish(Trajectory& trajectory, Nanoseconds now_ns) {
  predictor_.observe_turn(trajectory.group, trajectory.known_tokens,
                          seconds(trajectory.turn_ns, now_ns));
  trajectory.turn_ns = now_ns;
}

void Outlook::over(const Trajectory& trajectory, bool is_done) {
  const bool was_admitted = trajectory.state != TrajectoryState::kWaiting;
  if (is_done) {
    predictor_.observe_trajectory(trajectory.group, trajectory.said_tokens, trajectory.turn);
    contexts_.observe(static_cast<double>(trajectory.prompt_tokens()));
    const double share = settings_.displaced_share;
    if (share < 1) overcommit_.learn(trajectory.was_displaced, share);
    fates_.end(trajectory.said_tokens, trajectory.version_min);
  } else if (was_admitted) {
    fates_.drop(trajectory.said_tokens);
  }
  if (was_admitted) lives_.leave(trajectory.life_number);
  predictor_.leave(trajectory.group);
}

std::int64_t Outlook::reserve_tokens(const Trajectory& trajectory,
                                     std::int64_t ahead_tokens) const noexcept {
  if (settings_.reserve_quantile >= 1) return trajectory.need_tokens();
  const double most = std::min(trajectory.forecast.turn_tokens_high, kTokensMax);
  const auto high = static_cast<std::int64_t>(most);
  const std::int64_t turn = std::max(high, trajectory.known_tokens + ahead_tokens);
  return trajectory.context_tokens + std::min(turn, trajectory.max_new_tokens);
}

double Outlook::lag(const Trajectory& trajectory, Nanoseconds now_ns) const {
  const bool is_queued = trajectory.state == TrajectoryState::kQueued;
  const double life_s = is_queued
                            ? seconds(trajectory.started_ns, now_ns) + trajectory.forecast.left_s
                            : trajectory.life_s;
  return lives_.lag(life_s);
}

Nanoseconds Outlook::order_ns(const Trajectory& trajectory, Nanoseconds now_ns) const {
  const double weight = settings_.longest_first * (1 + lag(trajectory, now_ns));
  const double before_s = std::min(weight * trajectory.forecast.left_s, kOrderMaxS);
  return now_ns - static_cast<Nanoseconds>(before_s * kNsPerS);
}

Freshness Outlook::freshness(const Trajectory& trajectory, std::int64_t versions_left,
                             Nanoseconds now_ns) const noexcept {
  const LengthForecast& forecast = trajectory.forecast;
  return scheduler::freshness(clock_, versions_left, forecast.left_s, forecast.left_s_high, now_ns);
}

void Outlook::expect(Trajectory& trajectory, Nanoseconds now_ns) const noexcept {
  trajectory.forecast = predictor_.forecast(
      trajectory.group, {trajectory.known_tokens, trajectory.said_tokens, trajectory.turn});
  trajectory.life_s = seconds(trajectory.started_ns, now_ns) + trajectory.forecast.left_s;
}

}  // namespace rose::scheduler
