// The turns that want a worker, in the order in which they get one.
#pragma once

#include <compare>
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

// Within a rank the oldest trajectory is first. Urgency grows with age and nothing else tells two
// waiting trajectories apart, so this is the order of urgency, and no key changes while it waits.
struct QueueKey {
  QueueRank rank{QueueRank::kFresh};
  Nanoseconds since_ns{0};
  TrajectoryId trajectory{0};

  auto operator<=>(const QueueKey&) const = default;

  template <typename Image>
  void image(Image& image) {
    image(rank, since_ns, trajectory);
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
  bool is_empty() const noexcept { return order_.empty(); }

  template <typename Image>
  void image(Image& image) {
    image(order_, waits_);
  }

 private:
  std::set<QueueKey> order_;
  // Those that have not starved, by when they were queued.
  std::map<std::pair<Nanoseconds, TrajectoryId>, QueueKey> waits_;
};

}  // namespace rose::scheduler
