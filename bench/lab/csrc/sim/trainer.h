// The trainer of a job: allows new trajectories, forms batches, and publishes versions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "sim/simulated_trajectory.h"
#include "sim/world.h"

namespace rose::sim {

// One version, and the rollout of the batch from which it was learned.
struct Rollout {
  Nanoseconds published_ns{0};  // time at which the version was published
  Nanoseconds rollout_ns{0};    // from the first trajectory's admission to the end of the last
};

// A batch has whole groups whose trajectories are all over (done or dropped). Dropped trajectories
// are left out, and so are stale ones, which have a token more than `max_staleness` versions old.
// The rest of their group is still used.
//
// Asynchronous: a batch takes complete groups in order, until another group might not fit.
// Otherwise a batch has the trajectories that were created for it. They are created when the
// previous batch is taken (one step off), or when the version of that batch is published
// (synchronous).
class Trainer {
 public:
  Trainer(const JobSpec& spec, std::span<SimulatedTrajectory> trajectories, std::int64_t versions);

  // Number of trajectories that the driver is allowed to have created by now.
  std::int64_t creatable() const noexcept { return creatable_; }
  void admitted() noexcept;
  void created() noexcept { ++created_; }
  std::int64_t created_so_far() const noexcept { return created_; }
  // Notes that a trajectory is done or dropped.
  void over(std::int64_t index);
  // Takes a batch if one is ready and none is in training. Returns whether it did.
  bool take();
  // Publishes the version learned from the taken batch. Returns the batch's number of trajectories.
  std::int64_t publish(Nanoseconds now_ns);
  // Returns the number of stale trajectories discarded since the last call.
  std::int64_t thrown_away() noexcept;

  std::int64_t published() const noexcept { return static_cast<std::int64_t>(rollouts_.size()); }
  // True if all versions are published, or too few trajectories are left for a batch. Valid after
  // take() returned false.
  bool is_over() const noexcept;

  std::span<const SimulatedTrajectory> trajectories() const noexcept { return trajectories_; }
  const std::vector<Rollout>& rollouts() const noexcept { return rollouts_; }
  const std::vector<std::int64_t>& used_by() const noexcept { return used_by_; }
  const std::vector<std::int64_t>& staleness() const noexcept { return staleness_; }

 private:
  struct Group {
    std::int64_t first;
    std::int64_t size;
    std::int64_t left;  // trajectories that are not over
  };

  bool is_asynchronous() const noexcept { return spec_.mode == TrainerMode::kAsynchronous; }
  void allow_batch();
  // Discards stale trajectories of a group; returns whether any are left.
  bool sift(const Group& group);
  void sift_all();
  void learn_from(const Group& group);

  const JobSpec& spec_;
  const std::span<SimulatedTrajectory> trajectories_;
  const std::int64_t versions_;
  std::vector<Group> groups_;
  std::vector<std::size_t> group_of_;
  std::int64_t group_max_{0};

  std::size_t allowed_groups_{0};
  std::int64_t creatable_{0};
  std::int64_t created_{0};
  std::int64_t over_{0};
  std::deque<std::size_t> ready_;  // complete groups, in completion order
  std::int64_t ready_trajectories_{0};
  bool is_learning_{false};
  std::vector<std::int64_t> batch_;  // the batch in training
  std::int64_t thrown_away_{0};

  std::vector<Rollout> rollouts_;
  std::vector<std::int64_t> used_by_;
  std::vector<std::int64_t> staleness_;
};

}  // namespace rose::sim
