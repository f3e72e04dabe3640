// Outcomes of trajectories by length, which show whether lost trajectories bias the lengths that
// the trainer learns from.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "scheduler/events.h"

namespace rose::scheduler {

// Number of trajectories by output tokens: 0, 1, 2 to 3, 4 to 7 and so on.
class OutputLengthCounts {
 public:
  static constexpr std::size_t kBins = 42;  // lengths up to 2 kCountMax

  void add(std::int64_t tokens) noexcept;
  void add(const OutputLengthCounts& others) noexcept;
  const std::array<std::int64_t, kBins>& counts() const noexcept { return counts_; }
  std::int64_t count() const noexcept { return count_; }
  double sum() const noexcept { return sum_; }

  template <typename Image>
  void image(Image& image) {
    image(counts_, count_, sum_);
  }

 private:
  std::array<std::int64_t, kBins> counts_{};
  std::int64_t count_{0};
  double sum_{0};  // exact below 2^53 tokens
};

// Invariants:
//   1. An admitted trajectory that is over is in exactly one of done() and dropped().
//   2. A trajectory in stale() is also in done(), and was consumed.
class Fates {
 public:
  void drop(std::int64_t tokens) noexcept { dropped_.add(tokens); }
  // `version_min`: oldest weight version that generated a token of the trajectory.
  void end(std::int64_t tokens, std::int64_t version_min);
  // The trainer used `trajectories` more of the ended trajectories, in the order in which they
  // ended; `published` is the newest version.
  void consume(std::int64_t trajectories, std::int64_t published, std::int64_t max_staleness);

  // Adds the counts of another job.
  void add(const Fates& others) noexcept;

  const OutputLengthCounts& done() const noexcept { return done_; }
  const OutputLengthCounts& stale() const noexcept { return stale_; }
  const OutputLengthCounts& dropped() const noexcept { return dropped_; }
  // Mean length of dropped and stale trajectories, divided by the mean length of all others that
  // ended; 1 while either mean is unknown. Above 1, long trajectories are lost more often; below 1,
  // short ones.
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

  OutputLengthCounts done_;
  OutputLengthCounts stale_;
  OutputLengthCounts dropped_;
  std::deque<Ended> ended_;  // not consumed yet
};

}  // namespace rose::scheduler
