#include "sim/trainer.h"

#include <cstdint>
#include <vector>

#include "check.h"

using namespace rose;
using namespace rose::sim;

namespace {

// Groups of two trajectories of one turn each.
JobSpec job_of(TrainerMode mode, std::int64_t batch, std::int64_t max_staleness, int groups) {
  JobSpec job;
  job.first_turn.push_back(0);
  for (int i = 0; i < 2 * groups; ++i) {
    job.first_turn.push_back(i + 1);
    job.input_tokens.push_back(1);
    job.output_tokens.push_back(1);
    job.tool_ns.push_back(0);
    job.group.push_back(i / 2);
  }
  job.mode = mode;
  job.batch = batch;
  job.max_staleness = max_staleness;
  return job;
}

// A trainer, and trajectories that a test lets end.
struct Rig {
  Rig(TrainerMode mode, std::int64_t batch, std::int64_t max_staleness, int groups)
      : job{job_of(mode, batch, max_staleness, groups)},
        trajectories(job.group.size()),
        trainer{job, trajectories, 10} {}

  void end(std::int64_t index, std::int64_t version_min,
           TrajectoryPhase phase = TrajectoryPhase::kDone) {
    SimulatedTrajectory& trajectory = trajectories[static_cast<std::size_t>(index)];
    trajectory.phase = phase;
    trajectory.version_min = version_min;
    trajectory.started_ns = 10 * index;
    trajectory.done_ns = 1000 + index;
    trainer.over(index);
  }

  JobSpec job;
  std::vector<SimulatedTrajectory> trajectories;
  Trainer trainer;
};

TEST(a_group_is_taken_whole_and_in_the_order_of_completion) {
  Rig rig{TrainerMode::kAsynchronous, 4, 1, 4};
  for (const int index : {0, 2, 4, 5, 6}) rig.end(index, 0);
  CHECK(!rig.trainer.take());
  rig.end(3, 0);
  CHECK(rig.trainer.take());
  CHECK_EQ(rig.trainer.used_by()[0], kNone);
  for (const std::size_t index : {2u, 3u, 4u, 5u}) CHECK_EQ(rig.trainer.used_by()[index], 1);
  CHECK_EQ(rig.trainer.publish(5000), 4);
  CHECK_EQ(rig.trainer.rollouts()[0].rollout_ns, 1005 - 20);
  CHECK_EQ(rig.trainer.rollouts()[0].published_ns, 5000);
}

TEST(nothing_is_taken_while_a_version_is_learned) {
  Rig rig{TrainerMode::kAsynchronous, 2, 5, 2};
  for (const int index : {0, 1, 2, 3}) rig.end(index, 0);
  CHECK(rig.trainer.take());
  CHECK(!rig.trainer.take());
  rig.trainer.publish(1);
  CHECK(rig.trainer.take());
  CHECK_EQ(rig.trainer.staleness()[2], 1);
}

TEST(what_is_too_old_is_thrown_away_and_the_rest_of_its_group_counts_as_the_group) {
  Rig rig{TrainerMode::kAsynchronous, 2, 0, 4};
  rig.end(0, 0);
  rig.end(1, 0);
  CHECK(rig.trainer.take());
  rig.end(2, 0);
  rig.end(3, 1);  // while version 1 is in training
  rig.end(4, 0);
  rig.end(5, 0);
  rig.trainer.publish(1);
  CHECK_EQ(rig.trainer.thrown_away(), 3);
  CHECK_EQ(rig.trainer.thrown_away(), 0);
  CHECK(rig.trainer.take());
  CHECK_EQ(rig.trainer.used_by()[2], kNone);
  CHECK_EQ(rig.trainer.staleness()[2], 1);
  CHECK_EQ(rig.trainer.used_by()[3], 2);
  CHECK_EQ(rig.trainer.staleness()[3], 0);
  CHECK_EQ(rig.trainer.used_by()[4], kNone);
  CHECK_EQ(rig.trainer.publish(2), 1);
}

TEST(who_was_dropped_does_not_keep_its_group_waiting) {
  Rig rig{TrainerMode::kAsynchronous, 2, 0, 2};
  rig.end(0, 0, TrajectoryPhase::kDropped);
  rig.end(1, 0);
  CHECK(rig.trainer.take());
  CHECK_EQ(rig.trainer.publish(1), 1);
  CHECK_EQ(rig.trainer.used_by()[0], kNone);
}

TEST(synchronous_trajectories_start_when_the_version_is_out) {
  Rig rig{TrainerMode::kSynchronous, 4, 0, 4};
  CHECK_EQ(rig.trainer.creatable(), 4);
  for (const int index : {0, 1, 2}) rig.end(index, 0);
  CHECK(!rig.trainer.take());
  rig.end(3, 0);
  CHECK(rig.trainer.take());
  CHECK_EQ(rig.trainer.creatable(), 4);
  rig.trainer.publish(1);
  CHECK_EQ(rig.trainer.creatable(), 8);
}

TEST(one_step_off_the_next_batch_starts_when_the_last_is_taken) {
  Rig rig{TrainerMode::kOneStepOff, 4, 1, 4};
  for (const int index : {0, 1, 2, 3}) rig.end(index, 0);
  CHECK(rig.trainer.take());
  CHECK_EQ(rig.trainer.creatable(), 8);
  for (const int index : {4, 5, 6, 7}) rig.end(index, 0);
  CHECK(!rig.trainer.take());
  rig.trainer.publish(1);
  CHECK_EQ(rig.trainer.creatable(), 8);
  CHECK(rig.trainer.take());
  CHECK_EQ(rig.trainer.staleness()[4], 1);
}

TEST(a_batch_that_is_too_old_as_a_whole_lets_the_next_one_start) {
  Rig rig{TrainerMode::kSynchronous, 2, 0, 4};
  rig.end(0, 0);
  rig.end(1, 0);
  CHECK(rig.trainer.take());
  rig.trainer.publish(1);
  rig.end(2, 0);
  rig.end(3, 0);
  CHECK(!rig.trainer.take());
  CHECK_EQ(rig.trainer.thrown_away(), 2);
  CHECK_EQ(rig.trainer.creatable(), 6);
}

TEST(a_job_is_over_when_nothing_is_left_to_learn_from) {
  Rig rig{TrainerMode::kAsynchronous, 4, 1, 3};
  for (const int index : {0, 1, 2, 3, 4}) rig.end(index, 0);
  CHECK(rig.trainer.take());
  rig.end(5, 0);
  CHECK(!rig.trainer.is_over());
  rig.trainer.publish(1);
  CHECK(!rig.trainer.take());
  CHECK(rig.trainer.is_over());
}

}  // namespace
