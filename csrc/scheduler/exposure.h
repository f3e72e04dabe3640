// The work that would be recomputed if a failure domain were revoked now.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "scheduler/settings.h"

namespace rose::scheduler {

// Sums of one job, in one domain or over all domains.
struct Exposed {
  std::int64_t tokens{0};                // prompts and answers of running turns
  std::int64_t urgent{0};                // running turns that were urgent at their start
  std::int64_t prefill_tokens_per_s{0};  // rate of the workers with a live grant

  void add(const Exposed& more, std::int64_t sign) noexcept {
    tokens += sign * more.tokens;
    urgent += sign * more.urgent;
    prefill_tokens_per_s += sign * more.prefill_tokens_per_s;
  }

  template <typename Image>
  void image(Image& image) {
    image(tokens, urgent, prefill_tokens_per_s);
  }
};

// Survivors are the job's workers in all other domains. A turn may join domain d only if both hold:
//   1. d is empty, or
//      (tokens on d + prompt of the turn) / (prefill rate of the survivors) <= exposure_max_s;
//   2. the turn is not urgent, or the urgent turns on d, this one included, are at most the share
//      urgent_share_max of the job's urgent turns, rounded up.
// Without survivors any turn may join, because there is no alternative.
//
// Invariant: all() of a job is the sum of its domains.
class ExposureTable {
 public:
  explicit ExposureTable(const Settings& settings) noexcept
      : exposure_max_s_{settings.exposure_max_s}, urgent_share_max_{settings.urgent_share_max} {}

  // The permanent index of a domain.
  std::size_t place_of(std::int64_t domain) {
    return places_.try_emplace(domain, places_.size()).first->second;
  }
  std::size_t domains() const noexcept { return places_.size(); }

  void add(std::size_t job, std::size_t domain, const Exposed& more) {
    change(job, domain, more, 1);
  }
  void remove(std::size_t job, std::size_t domain, const Exposed& less) {
    change(job, domain, less, -1);
  }

  bool can_join(std::size_t job, std::size_t domain, double prompt_tokens,
                bool is_urgent) const noexcept {
    const Exposed& there = of(job, domain);
    const Exposed& everywhere = all(job);
    const std::int64_t survivors = everywhere.prefill_tokens_per_s - there.prefill_tokens_per_s;
    if (survivors <= 0) return true;
    const double tokens = static_cast<double>(there.tokens) + prompt_tokens;
    if (there.tokens > 0 && tokens > exposure_max_s_ * static_cast<double>(survivors)) return false;
    if (!is_urgent) return true;
    const double most = std::ceil(urgent_share_max_ * static_cast<double>(everywhere.urgent + 1));
    return static_cast<double>(there.urgent + 1) <= most;
  }
  // Recomputation time on the survivors; 0 without survivors.
  double seconds(std::size_t job, std::size_t domain) const noexcept {
    const Exposed& there = of(job, domain);
    const std::int64_t survivors = all(job).prefill_tokens_per_s - there.prefill_tokens_per_s;
    return survivors > 0 ? static_cast<double>(there.tokens) / static_cast<double>(survivors) : 0;
  }

  const Exposed& of(std::size_t job, std::size_t domain) const noexcept {
    static constexpr Exposed kNone;
    const bool is_known = job < cells_.size() && domain < cells_[job].size();
    return is_known ? cells_[job][domain] : kNone;
  }
  const Exposed& all(std::size_t job) const noexcept {
    static constexpr Exposed kNone;
    return job < sums_.size() ? sums_[job] : kNone;
  }

  template <typename Image>
  void image(Image& image) {
    image(places_, cells_, sums_);
  }
  bool is_in_bounds() const noexcept {
    const auto is_place = [&](const auto& entry) { return entry.second < domains(); };
    return sums_.size() == cells_.size() && std::all_of(places_.begin(), places_.end(), is_place);
  }

 private:
  void change(std::size_t job, std::size_t domain, const Exposed& by, std::int64_t sign) {
    if (job >= cells_.size()) {
      cells_.resize(job + 1);
      sums_.resize(job + 1);
    }
    if (domain >= cells_[job].size()) cells_[job].resize(domain + 1);
    cells_[job][domain].add(by, sign);
    sums_[job].add(by, sign);
  }

  double exposure_max_s_;
  double urgent_share_max_;
  std::unordered_map<std::int64_t, std::size_t> places_;  // never iterated
  std::vector<std::vector<Exposed>> cells_;               // by job and domain
  std::vector<Exposed> sums_;                             // by job
};

}  // namespace rose::scheduler
