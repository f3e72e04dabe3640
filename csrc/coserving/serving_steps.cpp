#include "coserving/serving_steps.h"

#include <cmath>
#include <utility>

namespace rose::coserving {

using slo::CommittedBatch;
using slo::Forecast;

ServingSteps::ServingSteps(ServingParts parts) noexcept : parts_{std::move(parts)} {}

StepBegun ServingSteps::begin(const std::optional<CommittedBatch>& batch, bool lends) noexcept {
  parts_.state->step_began();
  return lend(batch, lends);
}

StepBegun ServingSteps::commit(const std::optional<CommittedBatch>& batch) noexcept {
  return lend(batch, true);
}

StepBegun ServingSteps::lend(const std::optional<CommittedBatch>& batch, bool lends) noexcept {
  StepBegun begun{.from_ns = parts_.clock->now_ns()};
  if (is_lending_.load()) {
    if (lends) {
      begun.lent_ns = parts_.creditor->before_step(batch);
    } else {
      parts_.creditor->close_for_step();
    }
  }
  begun.passed = parts_.gate->passed();
  begun.is_blocked = parts_.gate->is_running() && !parts_.gate->is_open();
  begun.until_ns = parts_.clock->now_ns();
  return begun;
}

void ServingSteps::emitted(std::span<const std::uint32_t> slots, bool is_late) noexcept {
  parts_.state->beat();
  parts_.state->emitted(slots, is_late);
}

Result<StepEnded> ServingSteps::end(const StepFacts& step) noexcept {
  const Nanoseconds actual_ns = parts_.clock->now_ns() - step.began_ns;
  const Result<bool> is_short = record(step, static_cast<double>(actual_ns) / 1e6);
  parts_.state->step_ended();
  if (!is_short.ok()) return is_short.status();
  return StepEnded{.actual_ns = actual_ns, .is_short = is_short.value()};
}

Result<bool> ServingSteps::record(const StepFacts& step, double actual_ms) noexcept {
  const Result<Forecast> learned = learn(step, actual_ms);
  if (!learned.ok()) return learned.status();
  const Forecast& forecast = learned.value();
  parts_.log->append(slo::StepRecord{.predicted_ms = forecast.predicted_ms,
                                     .upper_ms = forecast.upper_ms,
                                     .actual_ms = actual_ms,
                                     .decode_sequences = step.batch.decode_sequences,
                                     .context_tokens = step.batch.context_tokens,
                                     .prefill_tokens = step.batch.prefill_tokens,
                                     .blocked_ms = step.blocked_ms,
                                     .lent_ms = step.lent_ms,
                                     .began_ns = step.began_ns});
  parts_.demand->step_ended(forecast.predicted_ms, actual_ms, step.batch.decode_sequences,
                            step.batch.prefill_tokens);
  return parts_.supply->is_short(0);
}

Result<Forecast> ServingSteps::learn(const StepFacts& step, double actual_ms) noexcept {
  const bool is_beside = parts_.gate->passed() != step.passed || parts_.gate->is_running();
  if (is_beside && is_lending_.load()) return parts_.model->forecast(step.batch);
  const bool is_after_loan = step.lent_ms > 0 && std::isfinite(parts_.log->header().slowdown);
  return parts_.model->observe(step.batch, actual_ms, is_after_loan);
}

}  // namespace rose::coserving
