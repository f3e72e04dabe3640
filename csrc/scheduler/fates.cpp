#include "scheduler/fates.h"

#include <algorithm>
#include <bit>

namespace rose::scheduler {

void OutputLengthCounts::add(std::int64_t tokens) noexcept {
  const auto bin = static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(tokens)));
  ++counts_[std::min(bin, kBins - 1)];
  ++count_;
  sum_ += static_cast<double>(tokens);
}

void OutputLengthCounts::add(const OutputLengthCounts& others) noexcept {
  for (std::size_t bin = 0; bin < kBins; ++bin) counts_[bin] += others.counts_[bin];
  count_ += others.count_;
  sum_ += others.sum_;
}

void Fates::add(const Fates& others) noexcept {
  done_.add(others.done_);
  stale_.add(others.stale_);
  dropped_.add(others.dropped_);
}

void Fates::end(std::int64_t tokens, std::int64_t version_min) {
  done_.add(tokens);
  ended_.push_back(Ended{tokens, version_min});
}

void Fates::consume(std::int64_t trajectories, std::int64_t published, std::int64_t max_staleness) {
  for (std::int64_t taken = 0; taken < trajectories && !ended_.empty(); ++taken) {
    const Ended& first = ended_.front();
    if (published - first.version_min > max_staleness) stale_.add(first.tokens);
    ended_.pop_front();
  }
}

double Fates::length_bias() const noexcept {
  const auto used = static_cast<double>(done_.count() - stale_.count());
  const double used_sum = done_.sum() - stale_.sum();
  const auto lost = static_cast<double>(dropped_.count() + stale_.count());
  const double lost_sum = dropped_.sum() + stale_.sum();
  return used_sum > 0 && lost > 0 ? (lost_sum / lost) / (used_sum / used) : 1;
}

}  // namespace rose::scheduler
