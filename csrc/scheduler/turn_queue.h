// The turns that want a worker, in the order in which they get one.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "base/clock.h"
#include "scheduler/events.h"

namespace rose::scheduler {

enum class QueueRank : std::uint8_t {
  kStarved = 0,  // waited longer than anybody should; the longest wait first
  kResumed,      // was running: somebody computed for it already
  kFresh,
};
template <>
struct EnumSize<QueueRank> {
  static constexpr std::size_t value = 3;
};

// Within a rank the earliest is first: a turn counts as queued the earlier, the more is left of its
// trajectory and the more urgent it is. So the longest goes first, and whoever waits gains on all
// that come later, though no key changes while it waits. The policy MLFQ has levels before that,
// and orders each by when its turns came.
struct QueueKey {
  QueueRank rank{QueueRank::kFresh};
  std::int64_t level{0};
  Nanoseconds order_ns{0};
  TrajectoryId trajectory{0};
  std::size_t job{0};  // its place among the jobs; orders nothing, as trajectories are unique

  auto operator<=>(const QueueKey&) const = default;

  template <typename Image>
  void image(Image& image) {
    image(rank, level, order_ns, trajectory, job);
  }
};

class TurnQueue {
 public:
  using Place = std::set<QueueKey>::const_iterator;

  void push(const QueueKey& key, Nanoseconds queued_ns);
  // What was pushed so; the key may have starved since.
  void remove(const QueueKey& key, Nanoseconds queued_ns);
  // Turns that were queued by `until_ns` come before all others from now on.
  void starve(Nanoseconds until_ns);

  Place begin() const noexcept { return order_.begin(); }
  Place end() const noexcept { return order_.end(); }
  // What was pushed so and not removed, starved or not.
  bool has(const QueueKey& key, Nanoseconds queued_ns) const;
  bool has_unstarved(const QueueKey& key, Nanoseconds queued_ns) const;
  bool is_empty() const noexcept { return order_.empty(); }

  template <typename Image>
  void image(Image& image) {
    image(order_, waits_);
  }
  // Whether it has that many, and so many of them have not starved.
  bool is_sound(std::size_t turns, std::size_t unstarved) const noexcept {
    return order_.size() == turns && waits_.size() == unstarved;
  }

 private:
  std::set<QueueKey> order_;
  // Those that have not starved, by when they were queued.
  std::map<std::pair<Nanoseconds, TrajectoryId>, QueueKey> waits_;
};

}  // namespace rose::scheduler
