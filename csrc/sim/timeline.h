// Queue of future events by time; simultaneous events keep the order of their scheduling.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <tuple>
#include <vector>

#include "base/clock.h"

namespace rose::sim {

enum class Happening : std::uint8_t {
  kBatchChanged = 0,  // the batch of worker `subject`
  kReportDue,         // a report of worker `subject`
  kLendingChanged,    // the loan of worker `subject`
  kStartedUp,         // worker `subject` after a new loan
  kUpdateArrived,     // new weights at worker `subject`
  kUpdated,           // worker `subject` runs them
  kToolDone,          // the tool of trajectory `subject`
  kLearned,           // the trainer of job `subject` finished a step
};

struct Moment {
  Nanoseconds at_ns;
  std::uint64_t order;
  Happening happening;
  std::int64_t subject;
  std::int64_t mark;  // an event with an outdated mark is ignored
};

class Timeline {
 public:
  void foresee(Nanoseconds at_ns, Happening happening, std::int64_t subject,
               std::int64_t mark = 0) {
    moments_.push({at_ns, order_++, happening, subject, mark});
  }
  bool is_empty() const noexcept { return moments_.empty(); }
  Nanoseconds next_ns() const noexcept { return moments_.top().at_ns; }
  Moment take() {
    const Moment moment = moments_.top();
    moments_.pop();
    return moment;
  }

 private:
  struct Later {
    bool operator()(const Moment& a, const Moment& b) const noexcept {
      return std::tie(a.at_ns, a.order) > std::tie(b.at_ns, b.order);
    }
  };

  std::uint64_t order_{0};
  std::priority_queue<Moment, std::vector<Moment>, Later> moments_;
};

}  // namespace rose::sim
