#include "slo/latency_model.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace rose::slo {

namespace {

// Scales every term to about 1 for ordinary steps, so that one ridge suits all.
constexpr std::array<double, 5> kScales{1.0, 32.0, 8192.0, 512.0, 512.0 * 4096.0};
// Smallest prediction. It is below the resolution of a step's timing, and keeps ratios finite.
constexpr double kFloorMs = 1e-3;
// Larger than the values of any engine. These limits keep products and squares finite.
constexpr double kFeatureMax = 1e9;
constexpr double kActualMaxMs = 1e9;
// Largest weight: a prior of kActualMaxMs per token pair, scaled.
constexpr double kWeightMax = 1e16;
// Variance of a scaled weight before the first step, in units of the squared prior and of the
// squared relative noise of a step. With a noise of 0.18, the prior may be wrong by its own size
// (30 * 0.18^2 = 1). With an absolute variance, it took hundreds of steps to correct a wrong prior
// on a slow machine.
constexpr double kPriorVariance = 30.0;
// Smallest error that is assumed for the prior of a weight: this share of the time that the prior
// predicts for an ordinary step, and at least a millisecond.
constexpr double kPriorShareMin = 0.03;
constexpr double kPriorOffMinMs = 1.0;
// While the trace of the covariance exceeds that of the prior by more than this factor, nothing is
// forgotten: steps with few features must not make the covariance grow without bound.
constexpr double kTraceOverPriorMax = 100;

// A chunk counts as full from this share of step_tokens on. On a device that computes and reads in
// parallel, the slope of a chunk's cost changes with its size, so that a linear fit is worst for
// the largest chunks.
constexpr double kFullShare = 0.75;

bool is_feature(double value) noexcept {
  return std::isfinite(value) && value >= 0 && value <= kFeatureMax;
}

Status check_features(const Features& features) noexcept {
  if (is_feature(features.decode_sequences) && is_feature(features.context_tokens) &&
      is_feature(features.prefill_tokens)) {
    return {};
  }
  return Status::invalid_argument(
      "decode_sequences, context_tokens and prefill_tokens of a step must lie in 0..1e9, got " +
      text_of(features.decode_sequences) + ", " + text_of(features.context_tokens) + " and " +
      text_of(features.prefill_tokens));
}

ConformalConfig bound_config(const LatencyConfig& config) noexcept {
  return {.epsilon = config.epsilon, .adaptation = config.adaptation, .window = config.window};
}

}  // namespace

LatencyModel::LatencyModel(const LatencyConfig& config) noexcept
    : config_{config},
      bounds_{ConformalBound{bound_config(config)}, ConformalBound{bound_config(config)},
              ConformalBound{bound_config(config)}} {
  double ordinary_ms = 0;
  for (std::size_t i = 0; i < kTerms; ++i) {
    weights_[i] = config.prior_ms[i] * kScales[i];
    ordinary_ms += weights_[i];
  }
  for (std::size_t i = 0; i < kTerms; ++i) {
    const double off_ms = std::max({weights_[i], kPriorShareMin * ordinary_ms, kPriorOffMinMs});
    prior_variance_[i] = kPriorVariance * off_ms * off_ms;
  }
  reset_covariance_locked();
}

Result<std::unique_ptr<LatencyModel>> LatencyModel::create(const LatencyConfig& config) {
  for (const double weight : config.prior_ms) {
    if (!std::isfinite(weight) || weight < 0 || weight > kActualMaxMs) {
      return Status::invalid_argument("prior_ms must hold five values in 0..1e9, got " +
                                      text_of(weight));
    }
  }
  if (!(config.forgetting > 0.5 && config.forgetting <= 1)) {
    return Status::invalid_argument("forgetting must lie in (0.5, 1], got " +
                                    text_of(config.forgetting));
  }
  if (config.step_tokens == 0) return Status::invalid_argument("step_tokens must be > 0, got 0");
  ROSE_TRY(ConformalBound::check(bound_config(config)));
  return std::unique_ptr<LatencyModel>{new LatencyModel{config}};
}

LatencyModel::Vector LatencyModel::terms_of(const Features& features) noexcept {
  Vector terms{1.0, features.decode_sequences, features.context_tokens, features.prefill_tokens,
               features.prefill_tokens * features.context_tokens};
  for (std::size_t i = 0; i < kTerms; ++i) terms[i] /= kScales[i];
  return terms;
}

StepKind LatencyModel::kind_of(const Features& features) const noexcept {
  if (features.prefill_tokens == 0) return StepKind::kDecode;
  return features.prefill_tokens < kFullShare * config_.step_tokens ? StepKind::kPart
                                                                    : StepKind::kFull;
}

Forecast LatencyModel::forecast_locked(const Features& features,
                                       const Vector& terms) const noexcept {
  double predicted_ms = 0;
  for (std::size_t i = 0; i < kTerms; ++i) predicted_ms += weights_[i] * terms[i];
  predicted_ms = std::clamp(predicted_ms, kFloorMs, kActualMaxMs);
  const auto kind = static_cast<std::size_t>(kind_of(features));
  return {.predicted_ms = predicted_ms, .upper_ms = predicted_ms * bounds_[kind].margin()};
}

// One step of weighted recursive least squares. Dividing by `scale` makes errors relative, and
// limits the relative error of an outlier to 4.
//
// Only the directions of this step's features are forgotten (directional forgetting: Kulhavy,
// Automatica 1987). Engines mostly run a few mixes of features, but certificates ask about other
// mixes, too. With uniform forgetting, noise would decide the forecasts for these other mixes. No
// weight is negative, because no work makes a step faster.
void LatencyModel::learn_locked(const Vector& terms, double predicted_ms,
                                double actual_ms) noexcept {
  const double scale = std::max(predicted_ms, actual_ms / 4);
  Vector x;
  double raw_ms = 0;
  for (std::size_t i = 0; i < kTerms; ++i) {
    x[i] = terms[i] / scale;
    raw_ms += weights_[i] * terms[i];
  }
  Vector gain{};
  double spread = 0;  // variance of the prediction
  double trace = 0;
  double prior_trace = 0;
  for (std::size_t i = 0; i < kTerms; ++i) {
    for (std::size_t j = 0; j < kTerms; ++j) gain[i] += covariance_[i][j] * x[j];
    spread += x[i] * gain[i];
    trace += covariance_[i][i];
    prior_trace += prior_variance_[i];
  }
  if (!(spread > 0)) return reset_covariance_locked();
  const double keep = trace > kTraceOverPriorMax * prior_trace ? 1.0 : config_.forgetting;
  const double shrink = (keep * spread - (1 - keep)) / (keep * spread * (1 + spread));
  const double error = std::clamp((actual_ms - raw_ms) / scale, -4.0, 4.0);
  bool sound = true;
  for (std::size_t i = 0; i < kTerms; ++i) {
    const double weight = weights_[i] + gain[i] * error / (1 + spread);
    if (std::abs(weight) <= kWeightMax) weights_[i] = std::max(weight, 0.0);
    for (std::size_t j = 0; j <= i; ++j) {
      covariance_[i][j] -= shrink * gain[i] * gain[j];
      covariance_[j][i] = covariance_[i][j];
      sound = sound && std::isfinite(covariance_[i][j]);
    }
    sound = sound && covariance_[i][i] > 0;
  }
  // Features that differ by twelve orders of magnitude can exceed the precision of doubles. Then
  // the weights stay, and the covariance starts anew.
  if (!sound) reset_covariance_locked();
}

void LatencyModel::reset_covariance_locked() noexcept {
  covariance_ = {};
  for (std::size_t i = 0; i < kTerms; ++i) covariance_[i][i] = prior_variance_[i];
}

Result<Forecast> LatencyModel::forecast(const Features& features) const noexcept {
  ROSE_TRY(check_features(features));
  const std::scoped_lock lock{mutex_};
  return forecast_locked(features, terms_of(features));
}

Result<Evidence> LatencyModel::evidence(const Features& features) const noexcept {
  ROSE_TRY(check_features(features));
  const std::scoped_lock lock{mutex_};
  const auto kind = static_cast<std::size_t>(kind_of(features));
  Evidence out = bounds_[kind].evidence();
  out.missing += static_cast<std::uint32_t>(kTraining - std::min(kTraining, seen_[kind]));
  return out;
}

Result<Forecast> LatencyModel::observe(const Features& features, double actual_ms,
                                       bool is_after_loan) noexcept {
  ROSE_TRY(check_features(features));
  if (!(std::isfinite(actual_ms) && actual_ms >= 0 && actual_ms <= kActualMaxMs)) {
    return Status::invalid_argument("actual_ms of a step must lie in 0..1e9, got " +
                                    text_of(actual_ms));
  }
  const Vector terms = terms_of(features);
  const std::scoped_lock lock{mutex_};
  const Forecast before = forecast_locked(features, terms);
  ++observations_;
  misses_ += actual_ms > before.upper_ms ? 1 : 0;
  const auto kind = static_cast<std::size_t>(kind_of(features));
  if (seen_[kind]++ >= kTraining) bounds_[kind].observe(actual_ms / before.predicted_ms);
  if (!is_after_loan) learn_locked(terms, before.predicted_ms, actual_ms);
  return before;
}

LatencyState LatencyModel::state() const {
  const std::scoped_lock lock{mutex_};
  return {.epsilon = config_.epsilon,
          .step_tokens = config_.step_tokens,
          .weights = weights_,
          .covariance = covariance_,
          .bounds = {bounds_[0].state(), bounds_[1].state(), bounds_[2].state()},
          .seen = seen_,
          .observations = observations_,
          .misses = misses_};
}

Result<std::unique_ptr<LatencyModel>> LatencyModel::restore(const LatencyConfig& config,
                                                            const LatencyState& state) {
  auto model = create(config);
  if (model.ok()) ROSE_TRY(model.value()->take(state));
  return model;
}

Status LatencyModel::take(const LatencyState& state) noexcept {
  const std::scoped_lock lock{mutex_};
  for (std::size_t i = 0; i < kTerms; ++i) {
    bool is_sound =
        state.weights[i] >= 0 && state.weights[i] <= kWeightMax && state.covariance[i][i] > 0;
    for (std::size_t j = 0; j <= i; ++j) {
      is_sound = is_sound && std::isfinite(state.covariance[i][j]) &&
                 state.covariance[i][j] == state.covariance[j][i];
    }
    if (!is_sound) {
      return {Code::kCorrupt, "the weights or covariances of a saved model are out of range"};
    }
  }
  if (state.step_tokens == 0) {
    return {Code::kCorrupt, "step_tokens of a saved model must be > 0, got 0"};
  }
  std::uint64_t seen = 0;
  bool is_counted = state.misses <= state.observations;
  for (std::size_t kind = 0; kind < kStepKinds; ++kind) {
    is_counted = is_counted && state.bounds[kind].scores.size() <= state.seen[kind] &&
                 state.seen[kind] <= state.observations;
    seen += state.seen[kind];
  }
  if (!is_counted || seen != state.observations) {
    return {Code::kCorrupt,
            "the counts of steps, scores and misses of a saved model do not match each other"};
  }
  const bool has_same_epsilon = state.epsilon == config_.epsilon;
  for (std::size_t kind = 0; kind < kStepKinds; ++kind) {
    ROSE_TRY(bounds_[kind].restore(state.bounds[kind], has_same_epsilon));
  }
  config_.step_tokens = state.step_tokens;
  seen_ = state.seen;
  weights_ = state.weights;
  covariance_ = state.covariance;
  observations_ = state.observations;
  misses_ = state.misses;
  return {};
}

std::uint64_t LatencyModel::observations() const noexcept {
  const std::scoped_lock lock{mutex_};
  return observations_;
}

double LatencyModel::coverage() const noexcept {
  const std::scoped_lock lock{mutex_};
  if (observations_ == 0) return 1.0;
  return 1.0 - static_cast<double>(misses_) / static_cast<double>(observations_);
}

}  // namespace rose::slo
