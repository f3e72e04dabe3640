#include "slo/demand.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

namespace rose::slo {

namespace {

// About 285 years, which still fit 64 bits in nanoseconds.
constexpr double kMemoryMaxMs = 9e12;

bool is_positive(double value, double max) noexcept {
  return std::isfinite(value) && value > 0 && value <= max;
}

}  // namespace

Result<std::unique_ptr<Demand>> Demand::create(const DemandConfig& config,
                                               std::shared_ptr<const LatencyModel> model,
                                               std::shared_ptr<const Clock> clock) noexcept {
  if (config.step_tokens == 0 || config.window == 0) {
    return Status::invalid_argument("step_tokens and window must be > 0, got " +
                                    std::to_string(config.step_tokens) + " and " +
                                    std::to_string(config.window));
  }
  if (!is_positive(config.epsilon, 1.0) || !is_positive(config.horizon_ms, kMemoryMaxMs) ||
      !is_positive(config.memory_ms, kMemoryMaxMs)) {
    return Status::invalid_argument(
        "epsilon must lie in (0, 1], and horizon_ms and memory_ms in (0, 9e12], got " +
        text_of(config.epsilon) + ", " + text_of(config.horizon_ms) + " and " +
        text_of(config.memory_ms));
  }
  std::unique_ptr<Demand> demand{new Demand{config, std::move(model), std::move(clock)}};
  ROSE_TRY(demand->blocks(0).status());
  return demand;
}

Demand::Demand(const DemandConfig& config, std::shared_ptr<const LatencyModel> model,
               std::shared_ptr<const Clock> clock) noexcept
    : config_{config},
      model_{std::move(model)},
      clock_{std::move(clock)},
      decode_tokens_per_s_{config.epsilon, config.window},
      prefill_tokens_per_s_{config.epsilon, config.window},
      speed_up_{config.epsilon, config.window},
      prompt_tokens_{config.epsilon, config.window} {}

void Demand::arrived(std::uint32_t prompt_tokens) noexcept {
  const std::lock_guard lock{mutex_};
  // The clock is read under the lock, so that arrivals are ordered.
  const Nanoseconds now_ns = clock_->now_ns();
  const auto horizon_ns = static_cast<Nanoseconds>(config_.horizon_ms * kNsPerMs);
  prompt_tokens_.add(prompt_tokens);
  recent_ns_.push_back(now_ns);
  while (recent_ns_.front() < now_ns - horizon_ns) recent_ns_.pop_front();
  const auto count = static_cast<std::uint32_t>(recent_ns_.size());
  while (!spans_.empty() && spans_.back().count <= count) spans_.pop_back();
  spans_.push_back({now_ns, count});
  forget(now_ns);
}

void Demand::forget(Nanoseconds now_ns) noexcept {
  const auto memory_ns = static_cast<Nanoseconds>(config_.memory_ms * kNsPerMs);
  while (!spans_.empty() && spans_.front().at_ns < now_ns - memory_ns) spans_.pop_front();
}

void Demand::step_ended(double predicted_ms, double actual_ms, double decode_sequences,
                        double prefill_tokens) noexcept {
  if (!(actual_ms > 0)) return;
  const std::lock_guard lock{mutex_};
  speed_up_.add(predicted_ms / actual_ms);
  if (decode_sequences > 0) decode_tokens_per_s_.add(kMsPerS / actual_ms);
  if (prefill_tokens > 0) prefill_tokens_per_s_.add(prefill_tokens * kMsPerS / actual_ms);
}

Result<AdmissionTerms> Demand::terms(std::uint32_t running) noexcept {
  const double chunk_tokens = config_.step_tokens;
  const Result<Forecast> step = model_->forecast({.decode_sequences = 1});
  if (!step.ok()) return step.status();
  const Result<Forecast> chunk = model_->forecast({.prefill_tokens = chunk_tokens});
  if (!chunk.ok()) return chunk.status();
  AdmissionTerms terms{.blocks_per_slab = config_.blocks_per_slab,
                       .block_tokens = config_.block_tokens,
                       .horizon_ms = config_.horizon_ms,
                       .running_requests = running,
                       .max_request_tokens = config_.request_tokens,
                       .max_batch_tokens = config_.step_tokens};
  const std::lock_guard lock{mutex_};
  // A step can be as fast as the model's mean, even if all recent steps were slower. So the
  // speed-up is at least 1.
  const std::optional<double> speed_up = speed_up_.bound();
  const double per_s = (speed_up ? std::max(1.0, *speed_up) : kColdMargin) * kMsPerS;
  terms.decode_tokens_per_s = std::min(
      kRateMax,
      std::max(per_s / step.value().predicted_ms, decode_tokens_per_s_.bound().value_or(0)));
  terms.prefill_tokens_per_s =
      std::min(kRateMax, std::max(per_s * chunk_tokens / chunk.value().predicted_ms,
                                  prefill_tokens_per_s_.bound().value_or(0)));
  forget(clock_->now_ns());
  expect_arrivals(terms);
  return terms;
}

// Until enough prompts were seen, each request of a burst counts with the longest prompt so far,
// but all together count at least as much as `burst_requests` prompts of request_tokens.
void Demand::expect_arrivals(AdmissionTerms& terms) const noexcept {
  const std::uint32_t seen = spans_.empty() ? 0 : spans_.front().count;
  const std::uint32_t requests = std::max(config_.burst_requests, seen);
  const double limit = config_.request_tokens;
  const double prior = config_.burst_requests * limit / std::max(1U, requests);
  const double tokens = prompt_tokens_.bound().value_or(std::max(prior, prompt_tokens_.largest()));
  terms.burst_requests = requests;
  terms.burst_request_tokens = static_cast<std::uint32_t>(std::min(limit, std::ceil(tokens)));
}

Result<std::uint64_t> Demand::blocks(std::uint32_t running) noexcept {
  const Result<AdmissionTerms> found = terms(running);
  if (!found.ok()) return found.status();
  ROSE_TRY(check(found.value()));
  return balance(found.value()).demand_blocks;
}

}  // namespace rose::slo
