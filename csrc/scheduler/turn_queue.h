// The turns that wait for a worker, in placement order.
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
  kStarved = 0,  // waited too long; the longest wait comes first
  kResumed,      // ran before, so work was already spent on it
  kFresh,
};
template <>
struct EnumSize<QueueRank> {
  static constexpr std::size_t value = 3;
};

// Within a rank the turn with the earliest order_ns comes first. The more time its trajectory still
// needs, and the more urgent the trajectory is, the earlier is order_ns. So the longest trajectory
// goes first, and a waiting turn gains on all later ones although its key stays the same. The
// policy MLFQ orders by level first, then by arrival.
struct QueueKey {
  QueueRank rank{QueueRank::kFresh};
  std::int64_t level{0};
  Nanoseconds order_ns{0};
  TrajectoryId trajectory{0};
  std::size_t job{0};  // index of the job; never decides the order, as trajectories are unique

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
  // Takes the arguments of push(); the turn may have starved since.
  void remove(const QueueKey& key, Nanoseconds queued_ns);
  // Moves turns that were queued at `until_ns` or before to the front of the queue.
  void starve(Nanoseconds until_ns);

  Place begin() const noexcept { return order_.begin(); }
  Place end() const noexcept { return order_.end(); }
  bool is_empty() const noexcept { return order_.empty(); }

  template <typename Image>
  void image(Image& image) {
    image(order_, waits_);
  }

 private:
  std::set<QueueKey> order_;
  // Turns that have not starved, by queueing time.
  std::map<std::pair<Nanoseconds, TrajectoryId>, QueueKey> waits_;
};

}  // namespace rose::scheduler
