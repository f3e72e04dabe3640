#include "slo/conformal_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "slo/conformal_rank.h"

namespace rose::slo {

namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();
// Invariant 4: older scores are outdated if their observed order has a probability below this
// value under the assumption that nothing has changed.
constexpr double kDriftChance = 0.01;
// Smallest factor between outdated and newer scores; a smaller difference is not worth the loss.
constexpr double kDriftFactor = 1.1;
// Number of fresh scores that confirm those of an earlier run: enough to recognise a machine that
// is twice as slow, and few enough for a start within a second.
constexpr std::uint32_t kConfirming = 8;
// Maximum number of fresh scores above the restored margin; if there are more, the restored scores
// are dropped.
constexpr std::uint32_t kContradictingMax = 1;
// Range of a saved level that covers every epsilon and adaptation.
constexpr double kLevelMin = -1;
constexpr double kLevelMax = 0.5;

}  // namespace

Status ConformalBound::check(const ConformalConfig& config) noexcept {
  if (!(config.epsilon > 0 && config.epsilon < 0.5)) {
    return Status::invalid_argument("epsilon must lie in (0, 0.5), got " + text_of(config.epsilon));
  }
  if (!(config.adaptation >= 0 && config.adaptation <= 1)) {
    return Status::invalid_argument("adaptation must lie in [0, 1], got " +
                                    text_of(config.adaptation));
  }
  if (config.window == 0 || config.window > kWindowMax) {
    return Status::invalid_argument("window must lie in 1..1024, got " +
                                    std::to_string(config.window));
  }
  return {};
}

bool ConformalBound::is_score(double score) noexcept { return score >= 0 && score <= kScoreMax; }

ConformalBound::ConformalBound(const ConformalConfig& config) noexcept
    : config_{config}, level_{config.epsilon}, margin_{kNone} {}

void ConformalBound::observe(double score) noexcept {
  const bool is_miss = score > margin_;
  if (confirming_ > 0) confirm(score);
  scores_[next_] = score;
  next_ = (next_ + 1) % config_.window;
  count_ = std::min(count_ + 1, config_.window);
  level_ += config_.adaptation * (config_.epsilon - (is_miss ? 1.0 : 0.0));
  level_ = std::min(level_, config_.epsilon);
  drop_another_time();
  margin_ = confirming_ > 0 ? kNone : quantile();
}

void ConformalBound::confirm(double score) noexcept {
  contradicting_ += score > quantile() ? 1 : 0;
  if (--confirming_ > 0) return;
  if (contradicting_ > kContradictingMax) keep_newest(kConfirming - 1);
}

// The ceil((n + 1)(1 - level))-th smallest score; at least 1, so that upper >= predicted.
double ConformalBound::quantile() const noexcept {
  if (count_ == 0) return kNone;
  const double rank = conformal_rank(count_, level_);
  if (rank > static_cast<double>(count_)) return kNone;
  std::array<double, kWindowMax> sorted;
  std::copy(scores_.begin(), scores_.begin() + count_, sorted.begin());
  const auto nth = sorted.begin() + static_cast<std::ptrdiff_t>(std::max(rank, 1.0)) - 1;
  std::nth_element(sorted.begin(), nth, sorted.begin() + count_);
  return std::max(1.0, *nth);
}

// Without a change, each order of the scores is equally likely. Then the chance that the `above`
// largest scores are all among the older ones is at most (number of older / number of all) ^ above.
void ConformalBound::drop_another_time() noexcept {
  const auto enough = static_cast<std::uint32_t>(std::ceil(1 / config_.epsilon));
  if (count_ <= enough) return;
  double largest = 1;
  for (std::uint32_t age = 0; age < enough; ++age) largest = std::max(largest, newest(age));
  largest *= kDriftFactor;
  std::uint32_t fresh = enough;
  while (fresh < count_ && newest(fresh) <= largest) ++fresh;
  if (fresh == count_) return;
  std::uint32_t above = 0;
  for (std::uint32_t age = fresh; age < count_; ++age) above += newest(age) > largest ? 1 : 0;
  const double older = static_cast<double>(count_ - fresh) / static_cast<double>(count_);
  if (std::pow(older, above) < kDriftChance) keep_newest(fresh);
}

void ConformalBound::keep_newest(std::uint32_t count) noexcept {
  if (count >= count_) return;
  std::array<double, kWindowMax> kept;
  for (std::uint32_t age = 0; age < count; ++age) kept[count - 1 - age] = newest(age);
  std::copy(kept.begin(), kept.begin() + count, scores_.begin());
  count_ = count;
  next_ = count % config_.window;
}

Evidence ConformalBound::evidence() const noexcept {
  const auto wanted = static_cast<std::uint32_t>(std::ceil(2 / config_.epsilon)) - 1;
  Evidence out{.scores = count_, .wanted = std::min(wanted, config_.window), .missing = 0};
  out.missing = std::max(out.wanted - std::min(out.wanted, count_), confirming_);
  const double places = 1 / (static_cast<double>(std::max(count_, out.wanted)) + 1);
  if (level_ < places) {
    const double step = std::max(config_.adaptation * config_.epsilon, 1e-9);
    const double steps = std::min(std::ceil((places - level_) / step), 1e9);
    out.missing = std::max(out.missing, static_cast<std::uint32_t>(steps));
  }
  return out;
}

double ConformalBound::largest() const noexcept {
  double out = 1;
  for (std::uint32_t age = 0; age < count_; ++age) out = std::max(out, newest(age));
  return out;
}

ConformalState ConformalBound::state() const {
  ConformalState out{.level = level_, .scores = {}};
  out.scores.reserve(count_);
  for (std::uint32_t age = count_; age-- > 0;) out.scores.push_back(newest(age));
  return out;
}

Status ConformalBound::restore(const ConformalState& state, bool has_same_epsilon) noexcept {
  if (!(state.level >= kLevelMin && state.level <= kLevelMax)) {
    return {Code::kCorrupt,
            "the level of a saved bound must lie in [-1, 0.5], got " + text_of(state.level)};
  }
  if (state.scores.size() > kWindowMax ||
      !std::all_of(state.scores.begin(), state.scores.end(), is_score)) {
    return {Code::kCorrupt, "a saved bound has more than 1024 scores, or a score outside 0..1e12"};
  }
  const auto size = static_cast<std::uint32_t>(state.scores.size());
  count_ = std::min(size, config_.window);
  next_ = count_ % config_.window;
  std::copy(state.scores.end() - count_, state.scores.end(), scores_.begin());
  level_ = has_same_epsilon ? std::min(state.level, config_.epsilon) : config_.epsilon;
  confirming_ = count_ > 0 ? kConfirming : 0;
  contradicting_ = 0;
  margin_ = kNone;
  return {};
}

}  // namespace rose::slo
