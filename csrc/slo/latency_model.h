// How long a serving step takes, learned while serving, with an upper bound that keeps its promise.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/status.h"

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
  double adaptation{0.005};   // step of the level per miss
  double cold_margin{2.0};    // upper() / predict() before the first observation
  std::uint32_t window{512};  // residuals kept, 1..1024
};

struct Forecast {
  double predicted_ms{0};
  double upper_ms{0};
};

// Regression: recursive least squares on relative errors with a ridge towards the prior.
// Bound: split-conformal quantile of recent actual / predicted (arXiv 2107.07511), whose level
// follows the misses (adaptive conformal inference, arXiv 2106.00170), so that the share of misses
// tends to epsilon although the machine drifts.
//
// Answers are finite, predict() > 0 and upper() >= predict(). Any thread; a call is a few
// microseconds under one mutex and allocates nothing.
class LatencyModel {
 public:
  static constexpr std::uint32_t kWindowMax = 1024;

  static Result<std::unique_ptr<LatencyModel>> create(const LatencyConfig& config);

  Result<Forecast> forecast(const Features& features) const noexcept;
  // Learns that a step took `actual_ms`. Returns what was forecast before. On error nothing
  // changes.
  Result<Forecast> observe(const Features& features, double actual_ms) noexcept;

  std::uint64_t observations() const noexcept;
  // Share of observed steps that stayed within upper(); 1 when there are none.
  double coverage() const noexcept;

 private:
  static constexpr std::size_t kTerms = 5;
  using Vector = std::array<double, kTerms>;

  explicit LatencyModel(const LatencyConfig& config) noexcept;

  static Vector terms_of(const Features& features) noexcept;
  Forecast forecast_locked(const Vector& terms) const noexcept;
  double margin_locked() const noexcept;
  void learn_locked(const Vector& terms, double predicted_ms, double actual_ms) noexcept;
  void reset_covariance_locked() noexcept;

  LatencyConfig config_;
  mutable std::mutex mutex_;  // guards all below
  Vector weights_{};          // of the scaled terms
  std::array<Vector, kTerms> covariance_{};
  std::array<double, kWindowMax> scores_{};  // a ring of actual / predicted
  std::uint64_t observations_{0};
  std::uint64_t misses_{0};
  double level_;   // the share of misses asked of the window now
  double margin_;  // upper / predicted at this level
};

}  // namespace rose::slo
