#include "scheduler/life_line.h"

#include <algorithm>

namespace rose::scheduler {

namespace {

// Median and 95th percentile are recomputed after one change per this many lives.
constexpr std::size_t kRefresh = 8;

}  // namespace

std::size_t LifeLine::enter(double life_s) {
  std::size_t number = places_.size();
  if (unused_.empty()) {
    places_.push_back(0);
  } else {
    number = unused_.back();
    unused_.pop_back();
  }
  places_[number] = lives_s_.size();
  lives_s_.push_back(life_s);
  numbers_.push_back(number);
  ++changes_;
  return number;
}

void LifeLine::change(std::size_t number, double life_s) noexcept {
  lives_s_[places_[number]] = life_s;
  ++changes_;
}

void LifeLine::leave(std::size_t number) noexcept {
  const std::size_t place = places_[number];
  lives_s_[place] = lives_s_.back();
  numbers_[place] = numbers_.back();
  places_[numbers_[place]] = place;
  lives_s_.pop_back();
  numbers_.pop_back();
  unused_.push_back(number);
  ++changes_;
}

double LifeLine::lag(double life_s) const {
  if (lives_s_.empty()) return 0;
  if (changes_ * kRefresh > lives_s_.size()) select();
  const double span_s = high_s_ - median_s_;
  if (life_s <= median_s_ || span_s <= 0) return 0;
  return std::min(1.0, (life_s - median_s_) / span_s);
}

bool LifeLine::is_in_bounds() const noexcept {
  const auto are_below = [](const std::vector<std::size_t>& all, std::size_t end) {
    return std::all_of(all.begin(), all.end(), [end](std::size_t each) { return each < end; });
  };
  return lives_s_.size() == numbers_.size() && are_below(numbers_, places_.size()) &&
         are_below(unused_, places_.size());
}

void LifeLine::select() const {
  changes_ = 0;
  sorted_s_ = lives_s_;
  const auto last = static_cast<std::ptrdiff_t>(sorted_s_.size()) - 1;
  const auto median = sorted_s_.begin() + last / 2;
  std::nth_element(sorted_s_.begin(), median, sorted_s_.end());
  median_s_ = *median;
  const auto high = sorted_s_.begin() + (last * 95 + 99) / 100;
  std::nth_element(median, high, sorted_s_.end());
  high_s_ = *high;
}

}  // namespace rose::scheduler
