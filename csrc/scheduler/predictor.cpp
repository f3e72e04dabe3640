#include "scheduler/predictor.h"

#include <algorithm>
#include <cmath>

namespace rose::scheduler {

namespace {

constexpr double kMedian = 0.5;
constexpr double kHigh = 0.9;
constexpr double kToolMaxMs = 1e9;

}  // namespace

void WindowMean::observe(double value) noexcept {
  count_ = std::min(count_ + 1, window_ + 1);
  mean_ += (value - mean_) / static_cast<double>(count_);
}

bool Predictor::Lengths::is_in_bounds() const noexcept {
  return turn_tokens.is_in_bounds() && turns.is_in_bounds() && tokens.is_in_bounds() &&
         tool_ms.is_in_bounds();
}

bool Predictor::is_in_bounds() const noexcept {
  return job_.is_in_bounds() && std::all_of(groups_.begin(), groups_.end(), [](const auto& entry) {
           return entry.second.lengths.is_in_bounds();
         });
}

Predictor::Predictor(const Settings& settings) noexcept
    : settings_{settings},
      job_{settings.turn_window},
      turn_s_{settings.turn_tokens_prior * settings.token_s_prior, settings.turn_window},
      turn_tokens_{settings.turn_tokens_prior, settings.turn_window} {
  job_.turn_tokens.assume(settings.turn_tokens_prior);
  job_.turns.assume(settings.turns_prior);
  job_.tokens.assume(settings.turns_prior * settings.turn_tokens_prior);
  job_.tool_ms.assume(settings.tool_s_prior * kMsPerS);
}

void Predictor::enter(GroupId group) {
  ++groups_.try_emplace(group, Group{Lengths{settings_.turn_window}}).first->second.live;
}

void Predictor::leave(GroupId group) noexcept {
  const auto found = groups_.find(group);
  if (found != groups_.end() && --found->second.live == 0) groups_.erase(found);
}

void Predictor::observe_turn(GroupId group, std::int64_t tokens, double seconds) {
  job_.turn_tokens.observe(tokens);
  if (Lengths* const near = find(group)) near->turn_tokens.observe(tokens);
  turn_tokens_.observe(static_cast<double>(tokens));
  turn_s_.observe(seconds);
}

void Predictor::observe_tool(GroupId group, double seconds) {
  const std::int64_t ms = std::llround(std::clamp(seconds * kMsPerS, 0.0, kToolMaxMs));
  job_.tool_ms.observe(ms);
  if (Lengths* const near = find(group)) near->tool_ms.observe(ms);
}

void Predictor::observe_trajectory(GroupId group, std::int64_t tokens, std::int64_t turns) {
  job_.tokens.observe(tokens);
  job_.turns.observe(turns);
  if (Lengths* const near = find(group)) {
    near->tokens.observe(tokens);
    near->turns.observe(turns);
  }
}

LengthForecast Predictor::forecast(GroupId group, const OutputSoFar& output) const noexcept {
  const auto found = groups_.find(group);
  const Lengths* const near = found == groups_.end() ? nullptr : &found->second.lengths;
  const Left turn =
      left(near, &Lengths::turn_tokens, output.turn_tokens, settings_.reserve_quantile);
  const Left tokens = left(near, &Lengths::tokens, output.tokens, kHigh);
  // The current turn is one of the remaining turns, and a tool call precedes each of the others.
  const Left turns = left(near, &Lengths::turns, output.turns, kHigh);
  const double tool_s = left(near, &Lengths::tool_ms, -1, kHigh).mean / kMsPerS;
  const double token_s = turn_s_.mean() / std::max(turn_tokens_.mean(), 1.0);
  return {.turn_tokens_left = turn.mean,
          .turn_tokens_high = static_cast<double>(output.turn_tokens) + turn.high,
          .left_s = std::max(tokens.low, turn.mean) * token_s + (turns.low - 1) * tool_s,
          .left_s_high = std::max(tokens.high, turn.mean) * token_s + (turns.high - 1) * tool_s};
}

Predictor::Lengths* Predictor::find(GroupId group) noexcept {
  const auto found = groups_.find(group);
  return found == groups_.end() ? nullptr : &found->second.lengths;
}

Left Predictor::left(const Lengths* near, Sketch Lengths::* of, std::int64_t given,
                     double high) const noexcept {
  const Sketch* const seen = near == nullptr ? nullptr : &(near->*of);
  return left_of(seen, job_.*of, settings_.job_weight, given, kMedian, high);
}

}  // namespace rose::scheduler
