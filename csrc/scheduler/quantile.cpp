#include "scheduler/quantile.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "scheduler/events.h"

namespace rose::scheduler {

namespace {

constexpr int kBits = 3;  // of a length that tell its bin within the octave
constexpr std::int64_t kBins = std::int64_t{1} << kBits;
// Less than this is no evidence: it has been halved until nothing is left of it.
constexpr double kWeightMin = 1e-6;
// The middles of eight equal parts of an exponential distribution, with mean 1 together.
constexpr std::array<double, 8> kExponential{0.0674152, 0.2168945, 0.3913948, 0.60101,
                                             0.8635263, 1.2149962, 1.748591,  2.896172};

// The weight of lengths above `given`, and their mean above it.
struct Above {
  double weight{0};
  double sum{0};
};

struct Blend {
  const Sketch* near;
  const Sketch& far;
  double far_scale;

  std::size_t size() const noexcept {
    return std::max(near == nullptr ? 0 : near->weights().size(), far.weights().size());
  }
  double weight(std::size_t bin) const noexcept {
    const bool is_near = near != nullptr && bin < near->weights().size();
    const double of_near = is_near ? near->weights()[bin] : 0;
    return of_near + (bin < far.weights().size() ? far_scale * far.weights()[bin] : 0);
  }
};

// The part of a bin above `given`: from `begin`, `count` lengths that weigh `each`.
struct Part {
  double begin{0};
  double count{0};
  double each{0};
};

Part part_above(const Blend& blend, std::size_t bin, std::int64_t given) noexcept {
  const std::int64_t bin_from = bin_begin(bin);
  const std::int64_t bin_to = bin_begin(bin + 1);
  const std::int64_t from = std::max(bin_from, given + 1);
  if (from >= bin_to) return {};
  return {.begin = static_cast<double>(from),
          .count = static_cast<double>(bin_to - from),
          .each = blend.weight(bin) / static_cast<double>(bin_to - bin_from)};
}

Above above(const Blend& blend, std::int64_t given) noexcept {
  Above all;
  for (std::size_t bin = bin_of(given); bin < blend.size(); ++bin) {
    const Part part = part_above(blend, bin, given);
    const double weight = part.count * part.each;
    all.weight += weight;
    all.sum += weight * (part.begin + (part.count - 1) / 2 - static_cast<double>(given));
  }
  return all;
}

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

std::int64_t bin_begin(std::size_t bin) noexcept {
  const auto place = static_cast<std::int64_t>(bin);
  if (place < kBins) return place;
  return (kBins + place % kBins) << (place / kBins - 1);
}

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

bool Sketch::is_sound() const noexcept {
  const auto is_weight = [](double weight) { return weight >= 0 && std::isfinite(weight); };
  return weights_.size() <= kBinsMax && is_weight(total_) && is_weight(window_) &&
         std::all_of(weights_.begin(), weights_.end(), is_weight);
}

Left left_of(const Sketch* near, const Sketch& far, double far_observations, std::int64_t given,
             double low, double high) noexcept {
  const double scale = near == nullptr ? 1 : far_observations / std::max(far.total(), kWeightMin);
  const Blend blend{near, far, scale};
  const Above all = above(blend, given);
  if (all.weight < kWeightMin) {
    return {.mean = pareto(given, 0.5), .low = pareto(given, low), .high = pareto(given, high)};
  }
  Left left{.mean = all.sum / all.weight};
  double before = 0;
  // The first length at which at least this much is reached; rounding may leave the last short.
  const auto reached = [&](const Part& part, double due) {
    const double steps = part.each > 0 ? std::ceil((due - before) / part.each) : part.count;
    const double at = part.begin - 1 + std::clamp(steps, 1.0, part.count);
    return at - static_cast<double>(given);
  };
  const double low_due = low * all.weight;
  const double high_due = high * all.weight;
  for (std::size_t bin = bin_of(given); bin < blend.size(); ++bin) {
    const Part part = part_above(blend, bin, given);
    const double after = before + part.count * part.each;
    if (part.each == 0) continue;
    if (before < low_due) left.low = reached(part, low_due);
    if (before < high_due) left.high = reached(part, high_due);
    before = after;
    if (before >= high_due) break;
  }
  return left;
}

}  // namespace rose::scheduler
