#include "slo/slowdown_bound.h"

#include <algorithm>
#include <cmath>

namespace rose::slo {

namespace {

constexpr double kBeyondSeen = 1.5;

}  // namespace

Result<std::unique_ptr<SlowdownBound>> SlowdownBound::create(const ConformalConfig& config,
                                                             double prior) {
  ROSE_TRY(ConformalBound::check(config));
  if (!(prior >= 1 && prior <= 1e6)) {
    return Status::invalid_argument("the prior of a slowdown must lie in 1..1e6");
  }
  return std::unique_ptr<SlowdownBound>{new SlowdownBound{config, prior}};
}

Status SlowdownBound::observe(double ratio) noexcept {
  if (!ConformalBound::is_score(ratio)) {
    return Status::invalid_argument("a slowdown must lie in 0..1e12");
  }
  const std::scoped_lock lock{mutex_};
  ++observations_;
  misses_ += ratio > upper_locked() ? 1 : 0;
  bound_.observe(ratio);
  return {};
}

double SlowdownBound::upper() const noexcept {
  const std::scoped_lock lock{mutex_};
  return upper_locked();
}

double SlowdownBound::upper_locked() const noexcept {
  if (std::isfinite(bound_.margin())) return bound_.margin();
  const bool has_seen = bound_.evidence().scores > 0;
  return has_seen ? std::max(prior_, kBeyondSeen * bound_.largest()) : prior_;
}

std::uint64_t SlowdownBound::observations() const noexcept {
  const std::scoped_lock lock{mutex_};
  return observations_;
}

double SlowdownBound::coverage() const noexcept {
  const std::scoped_lock lock{mutex_};
  if (observations_ == 0) return 1.0;
  return 1.0 - static_cast<double>(misses_) / static_cast<double>(observations_);
}

}  // namespace rose::slo
