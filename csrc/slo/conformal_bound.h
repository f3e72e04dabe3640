// A factor that recent ratios of actual to predicted exceed with a chosen frequency, drift or not.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/status.h"

namespace rose::slo {

struct ConformalConfig {
  double epsilon{0.01};       // share of ratios that may exceed the margin, in (0, 0.5)
  double adaptation{0.005};   // step of the level per miss, 0..1
  double cold_margin{2.0};    // the margin until there is evidence for a smaller one, 1..1e6
  std::uint32_t window{512};  // ratios kept, 1..1024
};

// What a bound has learned: enough to go on where it stopped.
struct ConformalState {
  double level{0};
  std::vector<double> scores;  // the oldest first
};

// Split-conformal quantile of a window of scores (arXiv 2107.07511), whose level follows the misses
// (adaptive conformal inference, arXiv 2106.00170): the share of misses tends to epsilon although
// what is measured drifts. One thread at a time.
//
// 1. The margin is finite and at least 1.
// 2. While the window is too small to show one miss in 1 / epsilon, it is at least cold_margin.
class ConformalBound {
 public:
  static constexpr std::uint32_t kWindowMax = 1024;
  // Beyond any ratio of two durations that rose can measure; keeps products finite.
  static constexpr double kScoreMax = 1e12;

  static Status check(const ConformalConfig& config) noexcept;
  static bool is_score(double score) noexcept;

  // `config` has passed check().
  explicit ConformalBound(const ConformalConfig& config) noexcept;

  // `score` has passed is_score().
  void observe(double score) noexcept;
  double margin() const noexcept { return margin_; }

  ConformalState state() const;
  // Goes on from `state`; the newest scores count where the window is smaller than it was. A level
  // means something beside its own epsilon only: without has_same_epsilon it starts anew.
  // kCorrupt, and nothing changes, when `state` cannot be one.
  Status restore(const ConformalState& state, bool has_same_epsilon) noexcept;

 private:
  double margin_now() const noexcept;

  ConformalConfig config_;
  std::array<double, kWindowMax> scores_{};  // a ring
  std::uint32_t next_{0};                    // where the next score goes
  std::uint32_t count_{0};                   // scores in the ring
  double level_;                             // the share of misses asked of the window now
  double margin_;                            // the quantile at this level
};

}  // namespace rose::slo
