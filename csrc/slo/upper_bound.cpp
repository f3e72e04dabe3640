#include "slo/upper_bound.h"

#include <algorithm>
#include <cmath>

namespace rose::slo {

void UpperBound::add(double sample) noexcept {
  if (recent_.size() == window_) {
    ordered_.erase(std::lower_bound(ordered_.begin(), ordered_.end(), recent_.front()));
    recent_.pop_front();
  }
  recent_.push_back(sample);
  ordered_.insert(std::upper_bound(ordered_.begin(), ordered_.end(), sample), sample);
}

std::optional<double> UpperBound::bound() const noexcept {
  const auto count = static_cast<double>(ordered_.size());
  // In doubles 0.99 * 100 exceeds 99; subtracting a tiny number keeps the intended rank.
  const double rank = std::ceil((count + 1) * (1 - epsilon_) - 1e-9);
  if (rank < 1 || rank > count) return std::nullopt;
  return ordered_[static_cast<std::size_t>(rank) - 1];
}

}  // namespace rose::slo
