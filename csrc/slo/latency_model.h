// How long a serving step takes, learned while serving, with an upper bound that keeps its promise.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/status.h"
#include "slo/conformal_bound.h"

namespace rose::slo {

// What one step works on. All finite and >= 0.
struct Features {
  double decode_sequences{0};
  double context_tokens{0};
  double prefill_tokens{0};
};

struct LatencyConfig {
  // Milliseconds per step, per decoding sequence, per context token, per prefill token, and per
  // prefill token times context token. A roofline estimate does; the model starts from it.
  std::array<double, 5> prior_ms{1.0, 0.0, 0.0, 0.0, 0.0};
  double epsilon{0.01};       // share of steps that may exceed upper()
  double forgetting{0.998};   // weight of an observation after one more: a memory of 500 steps
  double adaptation{0.002};   // step of the level per miss
  std::uint32_t window{512};  // residuals kept of each kind of step, 1..1024
  std::uint32_t step_tokens{8192};  // most tokens of one step, > 0: what a full chunk is
};

struct Forecast {
  double predicted_ms{0};
  double upper_ms{0};  // infinite for a kind of step without evidence
};

// Kinds of steps with different noise, or whose cost a straight line misses differently: steps that
// only decode, steps with a part of a chunk of prefill, and steps with a chunk near step_tokens,
// which certificates ask about.
enum class StepKind : std::uint8_t { kDecode = 0, kPart, kFull };
inline constexpr std::size_t kStepKinds = 3;

// Everything a model has learned.
struct LatencyState {
  double epsilon{0};  // which the levels belong to
  std::uint32_t step_tokens{0};
  std::array<double, 5> weights{};
  std::array<std::array<double, 5>, 5> covariance{};
  std::array<ConformalState, kStepKinds> bounds;
  std::array<std::uint64_t, kStepKinds> seen{};  // steps of each kind, the first of them unscored
  std::uint64_t observations{0};
  std::uint64_t misses{0};
};

// Regression: recursive least squares on relative errors with a ridge towards the prior, weights
// not under 0, and forgetting only of what a step speaks about: what certificates ask for, the
// heaviest step and the largest chunk, is seldom what ran last.
// Bound: the margin of a ConformalBound for each kind of step. With one for all, rare kinds would
// miss more often than promised, at the cost of margins too wide for the others. The first
// kTraining steps of a kind train the regression and are not scored: until then it says a prior.
//
// A forecast is finite and > 0; upper_ms is at least that, and infinite without evidence for the
// kind. Any thread; observe() is a few
// microseconds under one mutex, forecast() a small part of one, and neither allocates.
class LatencyModel {
 public:
  static constexpr std::uint64_t kTraining = 8;

  static Result<std::unique_ptr<LatencyModel>> create(const LatencyConfig& config);
  // Goes on from `state` under knobs that may differ from those it was learned with; prior_ms and
  // step_tokens of `config` are not used. kCorrupt when `state` cannot be a model's.
  static Result<std::unique_ptr<LatencyModel>> restore(const LatencyConfig& config,
                                                       const LatencyState& state);
  LatencyState state() const;

  // Counts the training that is left as missing, too.
  Result<Evidence> evidence(const Features& features) const noexcept;
  Result<Forecast> forecast(const Features& features) const noexcept;
  // Learns that a step took `actual_ms`. Returns what was forecast before. On error nothing
  // changes. A step after a loan is slower for it: it counts for the bound, which must hold there
  // too, and not for the regression, so predicted_ms stays the time of a step without one.
  Result<Forecast> observe(const Features& features, double actual_ms,
                           bool is_after_loan = false) noexcept;

  std::uint64_t observations() const noexcept;
  // Share of observed steps that stayed within upper(); 1 when there are none.
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
  mutable std::mutex mutex_;  // guards all below
  Vector weights_{};          // of the scaled terms
  Vector prior_variance_{};   // of each weight
  std::array<Vector, kTerms> covariance_{};
  std::array<ConformalBound, kStepKinds> bounds_;
  std::array<std::uint64_t, kStepKinds> seen_{};
  std::uint64_t observations_{0};
  std::uint64_t misses_{0};
};

}  // namespace rose::slo
