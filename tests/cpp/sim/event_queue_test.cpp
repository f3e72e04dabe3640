#include "sim/event_queue.h"

#include "check.h"

using namespace rose;
using namespace rose::sim;

namespace {

TEST(events_come_by_time_and_simultaneous_events_by_order_of_scheduling) {
  EventQueue queue;
  CHECK(queue.is_empty());
  queue.schedule(20, EventKind::kToolDone, 1);
  queue.schedule(10, EventKind::kToolDone, 2);
  queue.schedule(20, EventKind::kLearned, 3, 9);
  queue.schedule(10, EventKind::kReportDue, 4);
  CHECK_EQ(queue.next_ns(), 10);
  for (const std::int64_t subject : {2, 4, 1}) CHECK_EQ(queue.take().subject, subject);
  const ScheduledEvent last = queue.take();
  CHECK(last.kind == EventKind::kLearned);
  CHECK_EQ(last.mark, 9);
  CHECK(queue.is_empty());
}

}  // namespace
