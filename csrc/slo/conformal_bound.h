// A margin for predictions: the ratio of actual to predicted value exceeds the margin at most
// at a chosen rate, even under drift.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/status.h"

namespace rose::slo {

struct ConformalConfig {
  double epsilon{0.01};       // share of ratios that may exceed the margin, in (0, 0.5)
  double adaptation{0.002};   // size of the level's change at a miss, 0..1
  std::uint32_t window{512};  // ratios kept, 1..1024
};

// Everything that a bound has learned.
struct ConformalState {
  double level{0};
  std::vector<double> scores;  // oldest first
};

// The evidence behind a bound.
struct Evidence {
  std::uint32_t scores{0};  // scores in the window
  // Scores that a start-up collects: ceil(2 / epsilon) - 1, but at most the window.
  std::uint32_t wanted{0};
  // Further scores, none of them a miss, until there are `wanted` scores and they give a bound.
  std::uint32_t missing{0};
};

// Split-conformal quantile of a window of scores (arXiv 2107.07511) at a level that follows the
// misses (adaptive conformal inference, arXiv 2106.00170). A score is the ratio of an actual to a
// predicted value, and a miss is a score above the margin. One thread at a time.
//
// 1. The margin is a quantile of observed scores, but at least 1. It is infinite while there are
//    too few scores for the level, and never a guess or a multiple of the largest score.
// 2. Of any T consecutive scores, at most epsilon * T + epsilon / adaptation + 1 exceed a finite
//    margin. (A miss lowers the level by adaptation * (1 - epsilon), and any other score raises it
//    by adaptation * epsilon, up to epsilon. At a level of 0 or less the margin is infinite, so
//    there is no miss.)
// 3. A level too low for a bound recovers within 1 / epsilon scores, because no miss takes it below
//    -adaptation.
// 4. Scores leave the window by age, or when newer scores show that they are outdated. Older scores
//    are outdated if they include all of the largest scores, and if the chance of that would be
//    below kDriftChance had nothing changed.
class ConformalBound {
 public:
  static constexpr std::uint32_t kWindowMax = 1024;
  // Exceeds any ratio of two durations that rose can measure; keeps products finite.
  static constexpr double kScoreMax = 1e12;

  static Status check(const ConformalConfig& config) noexcept;
  static bool is_score(double score) noexcept;

  // Requires check(config).
  explicit ConformalBound(const ConformalConfig& config) noexcept;

  // Requires is_score(score).
  void observe(double score) noexcept;
  // Infinite without evidence.
  double margin() const noexcept { return margin_; }
  Evidence evidence() const noexcept;
  // The largest score in the window, but at least 1.
  double largest() const noexcept;

  ConformalState state() const;
  // Continues from `state` once kConfirming fresh scores have confirmed it. Until then there is no
  // bound. If more than one fresh score exceeds the restored margin, the restored scores are
  // dropped. A smaller window keeps the newest scores. The saved level is used only if it was
  // learned with the epsilon of this bound (`has_same_epsilon`); otherwise the level starts anew.
  // kCorrupt, with nothing changed, for an impossible `state`.
  Status restore(const ConformalState& state, bool has_same_epsilon) noexcept;

 private:
  double quantile() const noexcept;
  void confirm(double score) noexcept;
  void drop_another_time() noexcept;
  void keep_newest(std::uint32_t count) noexcept;
  // The score `age` scores before the newest.
  double newest(std::uint32_t age) const noexcept {
    return scores_[(next_ + config_.window - 1 - age) % config_.window];
  }

  ConformalConfig config_;
  std::array<double, kWindowMax> scores_{};  // a ring
  std::uint32_t next_{0};                    // index of the next score
  std::uint32_t count_{0};                   // scores in the ring
  std::uint32_t confirming_{0};              // fresh scores that a restored bound still needs
  std::uint32_t contradicting_{0};           // fresh scores that exceeded the restored margin
  double level_;                             // share of misses currently allowed in the window
  double margin_;                            // quantile at this level, or infinite
};

}  // namespace rose::slo
