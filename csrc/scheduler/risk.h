// What revocations are expected to be, and what the next ones may cost.
#pragma once

#include <cstddef>
#include <vector>

#include "base/clock.h"
#include "scheduler/exposure.h"
#include "scheduler/hazard.h"
#include "scheduler/settings.h"
#include "scheduler/trajectory_table.h"
#include "scheduler/worker_table.h"

namespace rose::scheduler {

// Keeps the hazards and the holds in the workers' columns, and the exposure of every domain.
//
// A revocation is a lease of a borrowed worker that ends while it lives, for whatever reason, or
// shrinks so far that turns have to go for it, or to less than half. A lease that breathes by less
// takes nothing from anybody.
class Risk {
 public:
  explicit Risk(const Settings& settings) noexcept : hazards_{settings}, exposures{settings} {}

  // The worker has a live lease that it had not.
  void begin(WorkerTable& workers, std::size_t slot, Nanoseconds now_ns);
  // The lease goes on; its device was lent `was` before.
  void go_on(WorkerTable& workers, std::size_t slot, const Share& was, Nanoseconds now_ns);
  // The lease, which lives, is about to end.
  void end(WorkerTable& workers, std::size_t slot, Nanoseconds now_ns);
  // Shows the hazards of domains that have changed.
  void settle(WorkerTable& workers);

  // A turn runs there from now on, says more, or does not any more.
  void run(Trajectory& trajectory, const Worker& worker, bool is_urgent);
  void grow(Trajectory& trajectory, std::int64_t tokens);
  void leave(Trajectory& trajectory);

  // The most seconds that the survivors would compute for what one domain holds of a job.
  double exposure_s(std::size_t jobs) const noexcept;

 private:
  void revoke(WorkerTable& workers, std::size_t slot, Nanoseconds now_ns);
  void show(WorkerTable& workers, std::size_t slot);
  Exposed speed_of(const Worker& worker) const noexcept;

  HazardTable hazards_;
  std::vector<double> shown_per_s_;  // by domain, what its workers' columns go by
  bool is_dirty_{false};

 public:
  ExposureTable exposures;

  template <typename Image>
  void image(Image& image) {
    image(hazards_, shown_per_s_, is_dirty_, exposures);
  }
  bool is_sound(std::size_t jobs) const;
};

// How long it takes at most until every turn runs again that is on a borrowed worker, if all of
// these are taken back now: the grace period, all their prompts on the dedicated workers behind
// what these have to compute already, the longest one last on the slowest, and, where the dedicated
// have no room or no seats for all at once, as many rounds of the longest turn as it takes.
// Infinite without a dedicated worker for a job that has borrowed ones.
double recovery_bound_s(const WorkerTable& workers, const TrajectoryTable& trajectories,
                        std::size_t jobs, const Settings& settings);

}  // namespace rose::scheduler
