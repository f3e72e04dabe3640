#include "slo/conformal_bound.h"

#include <algorithm>
#include <cmath>

namespace rose::slo {

namespace {

// What is added where the level asks for more than the window has seen.
constexpr double kBeyondWindow = 1.5;
// A debt of misses beyond this is forgotten: in a storm the margin would stay wide for too long.
constexpr double kLevelMin = -0.1;
constexpr double kLevelMax = 0.5;

}  // namespace

Status ConformalBound::check(const ConformalConfig& config) noexcept {
  if (!(config.epsilon > 0 && config.epsilon < 0.5)) {
    return Status::invalid_argument("epsilon must lie between 0 and 0.5");
  }
  if (!(config.adaptation >= 0 && config.adaptation <= 1)) {
    return Status::invalid_argument("adaptation must lie in [0, 1]");
  }
  if (!(config.cold_margin >= 1 && config.cold_margin <= 1e6)) {
    return Status::invalid_argument("cold_margin must lie in [1, 1e6]");
  }
  if (config.window == 0 || config.window > kWindowMax) {
    return Status::invalid_argument("window must lie in 1..1024");
  }
  return {};
}

bool ConformalBound::is_score(double score) noexcept { return score >= 0 && score <= kScoreMax; }

ConformalBound::ConformalBound(const ConformalConfig& config) noexcept
    : config_{config}, level_{config.epsilon}, margin_{config.cold_margin} {}

void ConformalBound::observe(double score) noexcept {
  const bool is_miss = score > margin_;
  scores_[next_] = score;
  next_ = (next_ + 1) % config_.window;
  count_ = std::min(count_ + 1, config_.window);
  level_ += config_.adaptation * (config_.epsilon - (is_miss ? 1.0 : 0.0));
  level_ = std::clamp(level_, kLevelMin, kLevelMax);
  margin_ = margin_now();
}

// The ceil((n + 1)(1 - level))-th smallest score; at least 1, so that upper >= predicted.
double ConformalBound::margin_now() const noexcept {
  if (count_ == 0) return config_.cold_margin;
  const double places = static_cast<double>(count_) + 1;
  const double rank = std::ceil(places * (1 - level_));
  const double at_least = places * config_.epsilon < 1 ? config_.cold_margin : 1.0;
  const auto end = scores_.begin() + count_;
  if (rank > static_cast<double>(count_)) {
    return std::max(at_least, kBeyondWindow * *std::max_element(scores_.begin(), end));
  }
  std::array<double, kWindowMax> sorted;
  std::copy(scores_.begin(), end, sorted.begin());
  const auto nth = sorted.begin() + static_cast<std::ptrdiff_t>(std::max(rank, 1.0)) - 1;
  std::nth_element(sorted.begin(), nth, sorted.begin() + count_);
  return std::max(at_least, *nth);
}

ConformalState ConformalBound::state() const {
  ConformalState out{.level = level_, .scores = {}};
  out.scores.reserve(count_);
  const std::uint32_t oldest = count_ < config_.window ? 0 : next_;
  for (std::uint32_t i = 0; i < count_; ++i) {
    out.scores.push_back(scores_[(oldest + i) % config_.window]);
  }
  return out;
}

Status ConformalBound::restore(const ConformalState& state, bool has_same_epsilon) noexcept {
  if (!(state.level >= kLevelMin && state.level <= kLevelMax)) {
    return {Code::kCorrupt, "the level of a bound lies outside its range"};
  }
  if (state.scores.size() > kWindowMax ||
      !std::all_of(state.scores.begin(), state.scores.end(), is_score)) {
    return {Code::kCorrupt, "the scores of a bound are too many or no ratios"};
  }
  const auto size = static_cast<std::uint32_t>(state.scores.size());
  count_ = std::min(size, config_.window);
  next_ = count_ % config_.window;
  std::copy(state.scores.end() - count_, state.scores.end(), scores_.begin());
  level_ = has_same_epsilon ? state.level : config_.epsilon;
  margin_ = margin_now();
  return {};
}

}  // namespace rose::slo
