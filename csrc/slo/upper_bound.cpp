#include "slo/upper_bound.h"

#include <algorithm>

#include "slo/conformal_rank.h"

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
  const auto count = static_cast<std::uint32_t>(ordered_.size());
  const double rank = conformal_rank(count, epsilon_);
  if (rank < 1 || rank > count) return std::nullopt;
  return ordered_[static_cast<std::size_t>(rank) - 1];
}

}  // namespace rose::slo
