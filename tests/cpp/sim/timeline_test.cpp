#include "sim/timeline.h"

#include "check.h"

using namespace rose;
using namespace rose::sim;

namespace {

TEST(what_happens_first_is_first_and_at_one_time_what_was_foreseen_first) {
  Timeline timeline;
  CHECK(timeline.is_empty());
  timeline.foresee(20, Happening::kToolDone, 1);
  timeline.foresee(10, Happening::kToolDone, 2);
  timeline.foresee(20, Happening::kLearned, 3, 9);
  timeline.foresee(10, Happening::kReportDue, 4);
  CHECK_EQ(timeline.next_ns(), 10);
  for (const std::int64_t subject : {2, 4, 1}) CHECK_EQ(timeline.take().subject, subject);
  const Moment last = timeline.take();
  CHECK(last.happening == Happening::kLearned);
  CHECK_EQ(last.mark, 9);
  CHECK(timeline.is_empty());
}

}  // namespace
