// What becomes of trajectories, by how much they said: whether those that are lost are others than
// those that are learned from.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "scheduler/events.h"

namespace rose::scheduler {

// How many trajectories said so many tokens: none, 1, 2 to 3, 4 to 7 and so on.
class LengthCounts {
 public:
  static constexpr std::size_t kBins = 42;  // lengths up to 2 kCountMax

  void add(std::int64_t tokens) noexcept;
  void add(const LengthCounts& others) noexcept;
  const std::array<std::int64_t, kBins>& counts() const noexcept { return counts_; }
  std::int64_t count() const noexcept { return count_; }
  double sum() const noexcept { return sum_; }

  template <typename Image>
  void image(Image& image) {
    image(counts_, count_, sum_);
  }
  bool is_sound() const noexcept;

 private:
  std::array<std::int64_t, kBins> counts_{};
  std::int64_t count_{0};
  double sum_{0};  // exact below 2^53 tokens
};

// Invariants:
//   1. Whatever was admitted is in done() or dropped() once it is over, and in one of them only.
//   2. What is stale() is in done(), and was consumed.
class Fates {
 public:
  void drop(std::int64_t tokens) noexcept { dropped_.add(tokens); }
  // `version_min`: the oldest weights that gave one of its tokens.
  void end(std::int64_t tokens, std::int64_t version_min);
  // The trainer took `trajectories` in the order in which they ended, with `published` the newest
  // version.
  void consume(std::int64_t trajectories, std::int64_t published, std::int64_t max_staleness);

  // Counts those of another job, too.
  void add(const Fates& others) noexcept;

  // How many ended and were not consumed.
  std::size_t ended() const noexcept { return ended_.size(); }
  bool is_sound() const noexcept;

  const LengthCounts& done() const noexcept { return done_; }
  const LengthCounts& stale() const noexcept { return stale_; }
  const LengthCounts& dropped() const noexcept { return dropped_; }
  // Mean length of those that were dropped or stale, over that of all others that ended. 1 while
  // either is without a length: longer ones are lost more often above it, shorter ones below.
  double length_bias() const noexcept;

  template <typename Image>
  void image(Image& image) {
    image(done_, stale_, dropped_, ended_);
  }

 private:
  struct Ended {
    std::int64_t tokens{0};
    std::int64_t version_min{0};

    template <typename Image>
    void image(Image& image) {
      image(tokens, version_min);
    }
  };

  LengthCounts done_;
  LengthCounts stale_;
  LengthCounts dropped_;
  std::deque<Ended> ended_;  // and not consumed
};

}  // namespace rose::scheduler
