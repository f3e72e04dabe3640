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

TEST(a_turn_after_a_tool_rises_by_one_level_but_not_above_the_first) {
  const auto level = [](const Trajectory& trajectory, QueueRank rank) {
    return mlfq_key(trajectory, rank, kQuantum, 7).level;
  };
  CHECK_EQ(level(served(1, 450, 2), QueueRank::kFresh), 2);
  CHECK_EQ(level(served(1, 450, 2), QueueRank::kResumed), 3);
  CHECK_EQ(level(served(1, 450, 0), QueueRank::kResumed), 3);
  CHECK_EQ(level(served(1, 150, 1), QueueRank::kFresh), 0);
  CHECK_EQ(level(served(1, 50, 1), QueueRank::kFresh), 0);
}

}  // namespace
