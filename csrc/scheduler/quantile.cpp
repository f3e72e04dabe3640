#include "scheduler/quantile.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "scheduler/events.h"

namespace rose::scheduler {

namespace {

constexpr int kBits = 3;  // bits of a length that select its bin within the octave
constexpr std::int64_t kBins = std::int64_t{1} << kBits;
// A smaller weight is no evidence: it was halved too often.
constexpr double kWeightMin = 1e-6;
// The means of eight equal parts of an exponential distribution with mean 1.
constexpr std::array<double, 8> kExponential{0.0674152, 0.2168945, 0.3913948, 0.60101,
                                             0.8635263, 1.2149962, 1.748591,  2.896172};

constexpr std::int64_t begin_of(std::size_t bin) noexcept {
  const auto place = static_cast<std::int64_t>(bin);
  if (place < kBins) return place;
  return (kBins + place % kBins) << (place / kBins - 1);
}

// The mean length of each bin, so that a pass over bins needs one multiplication per bin.
constexpr std::array<double, kBinsMax> kMiddles = [] {
  std::array<double, kBinsMax> middles{};
  for (std::size_t bin = 0; bin < kBinsMax; ++bin) {
    const std::int64_t count = begin_of(bin + 1) - begin_of(bin);
    middles[bin] = static_cast<double>(begin_of(bin)) + static_cast<double>(count - 1) / 2;
  }
  return middles;
}();

// The part of a bin above `given`: `count` lengths from `begin` on, each with weight `each`.
struct Part {
  double begin{0};
  double count{0};
  double each{0};
};

Part part_above(double weight, std::size_t bin, std::int64_t given) noexcept {
  const std::int64_t from = std::max(begin_of(bin), given + 1);
  const std::int64_t to = begin_of(bin + 1);
  return {.begin = static_cast<double>(from),
          .count = static_cast<double>(to - from),
          .each = weight / static_cast<double>(to - begin_of(bin))};
}

// The lengths above `given` in a blend of two sketches: the weight of each bin, and the cumulative
// weight. Computed once; a quantile is then a search.
class Above {
 public:
  Above(const Sketch* near, const Sketch& far, double far_scale, std::int64_t given) noexcept
      : given_{given}, first_{bin_of(given)} {
    blend(near, far, far_scale);
    if (first_ == end_) return;
    const Part part = part_above(weights_[first_], first_, given);
    total_ = part.count * part.each;
    sum_ = total_ * (part.begin + (part.count - 1) / 2 - static_cast<double>(given));
    ends_[first_] = total_;
    for (std::size_t bin = first_ + 1; bin < end_; ++bin) {
      total_ += weights_[bin];
      sum_ += weights_[bin] * (kMiddles[bin] - static_cast<double>(given));
      ends_[bin] = total_;
    }
  }

  double weight() const noexcept { return total_; }
  // Mean of the remaining lengths; requires a total weight above 0.
  double mean() const noexcept { return sum_ / total_; }
  // The remaining length at the first bin whose cumulative weight reaches `due`.
  double left_at(double due) const noexcept {
    if (due <= 0) return 0;
    const auto* const from = ends_.data() + first_;
    const auto* const found = std::lower_bound(from, ends_.data() + end_ - 1, due);
    const auto bin = static_cast<std::size_t>(found - ends_.data());
    const double before = bin == first_ ? 0 : ends_[bin - 1];
    const Part part = part_above(weights_[bin], bin, given_);
    const double steps = part.each > 0 ? std::ceil((due - before) / part.each) : part.count;
    return part.begin - 1 + std::clamp(steps, 1.0, part.count) - static_cast<double>(given_);
  }

 private:
  void blend(const Sketch* near, const Sketch& far, double far_scale) noexcept {
    const std::vector<double>& others = far.weights();
    const std::size_t of_near = near == nullptr ? 0 : near->weights().size();
    end_ = std::max({first_, of_near, others.size()});
    const std::size_t both = std::max(first_, std::min(of_near, others.size()));
    for (std::size_t bin = first_; bin < both; ++bin) {
      weights_[bin] = near->weights()[bin] + far_scale * others[bin];
    }
    for (std::size_t bin = both; bin < others.size(); ++bin)
      weights_[bin] = far_scale * others[bin];
    for (std::size_t bin = both; bin < of_near; ++bin) weights_[bin] = near->weights()[bin];
  }

  std::int64_t given_;
  std::size_t first_;
  std::size_t end_{0};
  double total_{0};
  double sum_{0};
  // Only the elements from first_ to end_ are written and read.
  std::array<double, kBinsMax> weights_;
  std::array<double, kBinsMax> ends_;
};

double pareto(std::int64_t given, double q) noexcept {
  const double lasted = static_cast<double>(std::max<std::int64_t>(given, 1));
  return std::min(lasted * q / (1 - q), static_cast<double>(kCountMax));
}

}  // namespace

std::size_t bin_of(std::int64_t length) noexcept {
  const std::int64_t known = std::clamp<std::int64_t>(length, 0, kCountMax);
  if (known < kBins) return static_cast<std::size_t>(known);
  const int octave = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(known))) - 1;
  const std::int64_t within = (known >> (octave - kBits)) & (kBins - 1);
  return static_cast<std::size_t>((octave - kBits + 1) * kBins + within);
}

std::int64_t bin_begin(std::size_t bin) noexcept { return begin_of(bin); }

void Sketch::observe(std::int64_t length, double weight) {
  const std::size_t bin = bin_of(length);
  if (bin >= weights_.size()) weights_.resize(bin + 1);
  weights_[bin] += weight;
  total_ += weight;
  if (total_ <= window_) return;
  total_ = 0;
  for (double& each : weights_) {
    each = each / 2 < kWeightMin ? 0 : each / 2;
    total_ += each;
  }
}

void Sketch::assume(double mean) {
  for (const double part : kExponential) {
    observe(std::llround(std::max(1.0, part * mean)), 1.0 / kExponential.size());
  }
}

Left left_of(const Sketch* near, const Sketch& far, double far_observations, std::int64_t given,
             double low, double high) noexcept {
  const double scale = near == nullptr ? 1 : far_observations / std::max(far.total(), kWeightMin);
  const Above above{near, far, scale, given};
  const double weight = above.weight();
  if (weight < kWeightMin) {
    return {.mean = pareto(given, 0.5), .low = pareto(given, low), .high = pareto(given, high)};
  }
  return {.mean = above.mean(),
          .low = above.left_at(low * weight),
          .high = above.left_at(high * weight)};
}

}  // namespace rose::scheduler
