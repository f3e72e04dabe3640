// Events that the scheduler has not received yet.
#pragma once

#include <utility>
#include <vector>

#include "base/clock.h"
#include "scheduler/events.h"

namespace rose::sim {

class Inbox {
 public:
  void push(scheduler::Event event, Nanoseconds now_ns) {
    if (events_.empty()) since_ns_ = now_ns;
    events_.push_back(std::move(event));
  }
  bool is_empty() const noexcept { return events_.empty(); }
  // Arrival of the first event.
  Nanoseconds since_ns() const noexcept { return since_ns_; }
  void swap(std::vector<scheduler::Event>& taken) noexcept { events_.swap(taken); }

 private:
  std::vector<scheduler::Event> events_;
  Nanoseconds since_ns_{0};
};

}  // namespace rose::sim
