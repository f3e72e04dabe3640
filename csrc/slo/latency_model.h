// Predicts the duration of a serving step, with an upper bound, and learns from each step.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/status.h"
#include "slo/conformal_bound.h"

namespace rose::slo {

// The work of one step. All finite and >= 0.
struct Features {
  double decode_sequences{0};
  double context_tokens{0};
  double prefill_tokens{0};
};

struct LatencyConfig {
  // Milliseconds per step, per decoding sequence, per context token, per prefill token, and per
  // prefill token times context token. The model starts from these; a roofline estimate is enough.
  std::array<double, 5> prior_ms{1.0, 0.0, 0.0, 0.0, 0.0};
  double epsilon{0.01};             // share of steps that may exceed upper_ms
  double forgetting{0.998};         // each step multiplies the weight of older steps by this factor
  double adaptation{0.002};         // as in ConformalConfig
  std::uint32_t window{512};        // scores kept per kind of step, 1..1024
  std::uint32_t step_tokens{8192};  // most tokens of one step, > 0: the size of a full chunk
};

struct Forecast {
  double predicted_ms{0};
  double upper_ms{0};  // infinite for a kind of step without evidence
};

// Kinds of steps, which differ in noise or in the error of the linear fit. kDecode has no prefill.
// kPart has a prefill chunk that is smaller than a full one. kFull has a prefill chunk near
// step_tokens, the size for which certificates need a forecast.
enum class StepKind : std::uint8_t { kDecode = 0, kPart, kFull };
inline constexpr std::size_t kStepKinds = 3;

// Everything that a model has learned.
struct LatencyState {
  double epsilon{0};  // epsilon with which the levels of `bounds` were learned
  std::uint32_t step_tokens{0};
  std::array<double, 5> weights{};
  std::array<std::array<double, 5>, 5> covariance{};
  std::array<ConformalState, kStepKinds> bounds;
  std::array<std::uint64_t, kStepKinds> seen{};  // steps of each kind, including unscored ones
  std::uint64_t observations{0};
  std::uint64_t misses{0};
};

// Regression: recursive least squares on relative errors with a ridge towards the prior and weights
// >= 0. It forgets only in the directions of the observed steps, because certificates ask about the
// heaviest step and the largest chunk, which seldom ran recently.
// Bound: the margin of one ConformalBound per kind of step. With a single bound for all kinds, rare
// kinds would miss more often than promised, and the margins of the others would be too wide. The
// first kTraining steps of a kind train the regression and are not scored.
//
// predicted_ms is finite and > 0. upper_ms is at least as large, and infinite without evidence for
// the kind. Any thread. observe() takes a few microseconds under one mutex, and forecast() a small
// part of a microsecond; neither allocates.
class LatencyModel {
 public:
  static constexpr std::uint64_t kTraining = 8;

  static Result<std::unique_ptr<LatencyModel>> create(const LatencyConfig& config);
  // Continues from `state`. The state's step_tokens replaces that of `config`; the other settings
  // may differ from those with which the state was learned. kCorrupt if no model can have this
  // state.
  static Result<std::unique_ptr<LatencyModel>> restore(const LatencyConfig& config,
                                                       const LatencyState& state);
  LatencyState state() const;

  // Returns the evidence for steps of this kind. Training steps that are still needed count as
  // missing, too.
  Result<Evidence> evidence(const Features& features) const noexcept;
  Result<Forecast> forecast(const Features& features) const noexcept;
  // Returns the forecast for a step, then learns that the step took `actual_ms`. On error nothing
  // changes. `is_after_loan`: serving let rollouts run just before the step, which makes the step
  // slower. Such a step counts for the bound, which must hold for such steps, too. It does not
  // count for the regression, so that predicted_ms stays the time without a loan.
  Result<Forecast> observe(const Features& features, double actual_ms,
                           bool is_after_loan = false) noexcept;

  std::uint64_t observations() const noexcept;
  // Share of observed steps within upper_ms; 1 if there are none.
  double coverage() const noexcept;

 private:
  static constexpr std::size_t kTerms = 5;
  using Vector = std::array<double, kTerms>;

  explicit LatencyModel(const LatencyConfig& config) noexcept;

  static Vector terms_of(const Features& features) noexcept;
  StepKind kind_of(const Features& features) const noexcept;
  Forecast forecast_locked(const Features& features, const Vector& terms) const noexcept;
  void learn_locked(const Vector& terms, double predicted_ms, double actual_ms) noexcept;
  void reset_covariance_locked() noexcept;
  Status take(const LatencyState& state) noexcept;

  LatencyConfig config_;
  mutable std::mutex mutex_;  // guards all members below
  Vector weights_{};          // for the scaled terms
  Vector prior_variance_{};   // per weight
  std::array<Vector, kTerms> covariance_{};
  std::array<ConformalBound, kStepKinds> bounds_;
  std::array<std::uint64_t, kStepKinds> seen_{};
  std::uint64_t observations_{0};
  std::uint64_t misses_{0};
};

}  // namespace rose::slo
