#include "scheduler/mlfq.h"

#include <cstdint>

#include "check.h"
#include "scheduler/events.h"

using namespace rose;
using namespace rose::scheduler;

namespace {

constexpr std::int64_t kQuantum = 100;

Trajectory served(TrajectoryId id, std::int64_t said_tokens, std::int64_t turn) {
  Trajectory made;
  made.id = id;
  made.said_tokens = said_tokens;
  made.turn = turn;
  return made;
}

TEST(each_level_takes_as_much_as_all_before_it) {
  CHECK_EQ(level_of(0, kQuantum), 0);
  CHECK_EQ(level_of(99, kQuantum), 0);
  for (int level = 1; level < 30; ++level) {
    const std::int64_t begin = kQuantum << (level - 1);
    CHECK_EQ(level_of(begin - 1, kQuantum), level - 1);
    CHECK_EQ(level_of(begin, kQuantum), level);
  }
  CHECK_EQ(level_of(kCountMax, 1), 41);
}

TEST(return_of_a_tool_is_worth_one_level_and_nobody_is_above_the_first) {
  const auto level = [](const Trajectory& trajectory, QueueRank rank) {
    return mlfq_key(trajectory, rank, kQuantum, 7).level;
  };
  CHECK_EQ(level(served(1, 450, 2), QueueRank::kFresh), 2);
  CHECK_EQ(level(served(1, 450, 2), QueueRank::kResumed), 3);
  CHECK_EQ(level(served(1, 450, 0), QueueRank::kResumed), 3);
  CHECK_EQ(level(served(1, 150, 1), QueueRank::kFresh), 0);
  CHECK_EQ(level(served(1, 50, 1), QueueRank::kFresh), 0);
}

TEST(rank_comes_before_level_and_level_before_time) {
  const QueueKey resumed = mlfq_key(served(1, 9000, 1), QueueRank::kResumed, kQuantum, 30);
  const QueueKey little = mlfq_key(served(2, 0, 0), QueueRank::kFresh, kQuantum, 20);
  const QueueKey much = mlfq_key(served(3, 9000, 1), QueueRank::kFresh, kQuantum, 10);
  const QueueKey later = mlfq_key(served(0, 9000, 1), QueueRank::kFresh, kQuantum, 11);
  CHECK(resumed < little);
  CHECK(little < much);
  CHECK(much < later);
}

}  // namespace
