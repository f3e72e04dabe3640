#include "scheduler/turn_queue.h"

namespace rose::scheduler {

namespace {

QueueKey starved(const QueueKey& key, Nanoseconds queued_ns) noexcept {
  return {.rank = QueueRank::kStarved,
          .level = 0,
          .order_ns = queued_ns,
          .trajectory = key.trajectory,
          .job = key.job};
}

}  // namespace

void TurnQueue::push(const QueueKey& key, Nanoseconds queued_ns) {
  order_.insert(key);
  waits_.insert({{queued_ns, key.trajectory}, key});
}

void TurnQueue::remove(const QueueKey& key, Nanoseconds queued_ns) {
  const bool has_waited = waits_.erase({queued_ns, key.trajectory}) == 0;
  order_.erase(has_waited ? starved(key, queued_ns) : key);
}

void TurnQueue::starve(Nanoseconds until_ns) {
  while (!waits_.empty() && waits_.begin()->first.first <= until_ns) {
    const auto& [since, key] = *waits_.begin();
    order_.erase(key);
    order_.insert(starved(key, since.first));
    waits_.erase(waits_.begin());
  }
}

}  // namespace rose::scheduler
