// Predicted lifetimes of live trajectories.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace rose::scheduler {

// Median and 95th percentile are recomputed after changes of an eighth of the trajectories, which
// costs a few comparisons per change. In between they keep their last exact values.
class LifeLine {
 public:
  // Returns the number of the life; numbers of lives that left are reused.
  std::size_t enter(double life_s);
  void change(std::size_t number, double life_s) noexcept;
  void leave(std::size_t number) noexcept;

  std::size_t size() const noexcept { return lives_s_.size(); }
  // Rank of a lifetime: 0 up to the median, 1 from the 95th percentile on, linear in between.
  double lag(double life_s) const;

  template <typename Image>
  void image(Image& image) {
    image(lives_s_, numbers_, places_, unused_, changes_, median_s_, high_s_);
  }
  bool is_in_bounds() const noexcept;
  bool has(std::size_t number) const noexcept {
    return number < places_.size() && places_[number] < lives_s_.size();
  }

 private:
  void select() const;

  std::vector<double> lives_s_;           // without gaps
  std::vector<std::size_t> numbers_;      // by position in lives_s_
  std::vector<std::size_t> places_;       // by number: position in lives_s_
  std::vector<std::size_t> unused_;       // numbers to reuse
  mutable std::vector<double> sorted_s_;  // scratch
  mutable std::size_t changes_{1};        // since the last selection
  mutable double median_s_{0};
  mutable double high_s_{0};
};

}  // namespace rose::scheduler
