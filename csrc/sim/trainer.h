// The trainer of a job: when trajectories may start, which become a batch, and what that gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "sim/flight.h"
#include "sim/world.h"

namespace rose::sim {

// What a version was learned from.
struct Rollout {
  Nanoseconds published_ns{0};
  Nanoseconds rollout_ns{0};  // from its first trajectory's admission to its last one's end
};

// Groups come into a batch whole, when all their trajectories are over. A trajectory whose oldest
// token is more than `max_staleness` versions old is not learned from; one that the scheduler gave
// up is missing; the rest of its group counts as the group.
//
// Asynchronous: groups are taken as they are complete, as many as fit a batch; one is full when
// another group might not fit. Otherwise a batch is made of trajectories that were created for it:
// those of the next when the last was taken (one step off), or when its version is out.
class Trainer {
 public:
  Trainer(const JobSpec& spec, std::span<Flight> flights, std::int64_t versions);

  // How many trajectories may have been created by now.
  std::int64_t creatable() const noexcept { return creatable_; }
  void admitted() noexcept;
  void created() noexcept { ++created_; }
  std::int64_t created_so_far() const noexcept { return created_; }
  // A trajectory is done or dropped.
  void over(std::int64_t index);
  // Takes a batch if there is one and nothing is being learned. Returns whether it did.
  bool take();
  // The version of the batch that was taken is out. Returns how many were learned from.
  std::int64_t publish(Nanoseconds now_ns);
  // How many were thrown away since the last call.
  std::int64_t thrown_away() noexcept;

  std::int64_t published() const noexcept { return static_cast<std::int64_t>(rollouts_.size()); }
  // All its versions are out, or what is left is no batch. After take() said that there is none.
  bool is_over() const noexcept;

  std::span<const Flight> flights() const noexcept { return flights_; }
  const std::vector<Rollout>& rollouts() const noexcept { return rollouts_; }
  const std::vector<std::int64_t>& used_by() const noexcept { return used_by_; }
  const std::vector<std::int64_t>& staleness() const noexcept { return staleness_; }

 private:
  struct Group {
    std::int64_t first;
    std::int64_t size;
    std::int64_t left;  // not over
  };

  bool is_asynchronous() const noexcept { return spec_.mode == TrainerMode::kAsynchronous; }
  void allow_batch();
  // Throws away what is too old in a group; returns whether something is left.
  bool sift(const Group& group);
  void sift_all();
  void learn_from(const Group& group);

  const JobSpec& spec_;
  const std::span<Flight> flights_;
  const std::int64_t versions_;
  std::vector<Group> groups_;
  std::vector<std::size_t> group_of_;
  std::int64_t group_max_{0};

  std::size_t allowed_groups_{0};
  std::int64_t creatable_{0};
  std::int64_t created_{0};
  std::int64_t over_{0};
  std::deque<std::size_t> ready_;  // complete groups, in the order of their completion
  std::int64_t ready_trajectories_{0};
  bool is_learning_{false};
  std::vector<std::int64_t> batch_;  // being learned
  std::int64_t thrown_away_{0};

  std::vector<Rollout> rollouts_;
  std::vector<std::int64_t> used_by_;
  std::vector<std::int64_t> staleness_;
};

}  // namespace rose::sim
