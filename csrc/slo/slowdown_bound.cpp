#include "slo/slowdown_bound.h"

namespace rose::slo {

Result<std::unique_ptr<SlowdownBound>> SlowdownBound::create(const ConformalConfig& config) {
  ROSE_TRY(ConformalBound::check(config));
  return std::unique_ptr<SlowdownBound>{new SlowdownBound{config}};
}

Status SlowdownBound::observe(double ratio) noexcept {
  if (!ConformalBound::is_score(ratio)) {
    return Status::invalid_argument("a slowdown must lie in 0..1e12");
  }
  const std::scoped_lock lock{mutex_};
  ++observations_;
  misses_ += ratio > bound_.margin() ? 1 : 0;
  bound_.observe(ratio);
  return {};
}

double SlowdownBound::upper() const noexcept {
  const std::scoped_lock lock{mutex_};
  return bound_.margin();
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
