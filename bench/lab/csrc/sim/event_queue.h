// Queue of future events by time; simultaneous events keep the order in which they were scheduled.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <tuple>
#include <vector>

#include "base/clock.h"

namespace rose::sim {

enum class EventKind : std::uint8_t {
  kBatchChanged = 0,  // the batch of worker `subject` changes
  kReportDue,         // worker `subject` must report
  kLendingChanged,    // the loan of worker `subject` changes
  kStartedUp,         // worker `subject` is ready after a new loan
  kUpdateArrived,     // new weights have arrived at worker `subject`
  kUpdated,           // worker `subject` runs with the new weights
  kToolDone,          // the tool call of trajectory `subject` returned
  kLearned,           // the trainer of job `subject` finished a step
};

struct ScheduledEvent {
  Nanoseconds at_ns;
  std::uint64_t order;
  EventKind kind;
  std::int64_t subject;
  std::int64_t mark;  // an event with an outdated mark is ignored
};

class EventQueue {
 public:
  void schedule(Nanoseconds at_ns, EventKind kind, std::int64_t subject, std::int64_t mark = 0) {
    events_.push({at_ns, order_++, kind, subject, mark});
  }
  bool is_empty() const noexcept { return events_.empty(); }
  Nanoseconds next_ns() const noexcept { return events_.top().at_ns; }
  ScheduledEvent take() {
    const ScheduledEvent event = events_.top();
    events_.pop();
    return event;
  }

 private:
  struct Later {
    bool operator()(const ScheduledEvent& a, const ScheduledEvent& b) const noexcept {
      return std::tie(a.at_ns, a.order) > std::tie(b.at_ns, b.order);
    }
  };

  std::uint64_t order_{0};
  std::priority_queue<ScheduledEvent, std::vector<ScheduledEvent>, Later> events_;
};

}  // namespace rose::sim
