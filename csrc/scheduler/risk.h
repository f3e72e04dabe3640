// Expected revocations, and how much the next ones would cost.
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

// Maintains hazards and holds in the workers' columns, and the exposure of every domain.
//
// A revocation is the early end of a borrowed worker's grant, for any reason, or a shrink of the
// grant that evicts turns or leaves less than half of it. Smaller changes of a grant harm no turn
// and do not count.
class Risk {
 public:
  explicit Risk(const Settings& settings) noexcept : hazards_{settings}, exposures{settings} {}

  // The worker has a new live grant.
  void begin(WorkerTable& workers, std::size_t slot, Nanoseconds now_ns);
  // The grant was renewed or resized; `was` is the device's share before.
  void go_on(WorkerTable& workers, std::size_t slot, const Share& was, Nanoseconds now_ns);
  // The live grant is about to end, by a revocation or because the worker is drained.
  void end(WorkerTable& workers, std::size_t slot, Nanoseconds now_ns, bool is_revoked = true);
  // Changes the rates of a worker.
  void measure(WorkerTable& workers, std::size_t slot, const WorkerMeasured& event);
  // Writes the hazards of changed domains to the columns.
  void settle(WorkerTable& workers);

  // A turn starts on the worker, generates tokens, or leaves.
  void run(Trajectory& trajectory, const Worker& worker, bool is_urgent);
  void grow(Trajectory& trajectory, std::int64_t tokens);
  void leave(Trajectory& trajectory);

  // Maximum over jobs and domains of the survivors' recomputation time for a domain's turns.
  double exposure_s(std::size_t jobs) const noexcept;

 private:
  void revoke(WorkerTable& workers, std::size_t slot, Nanoseconds now_ns);
  void show(WorkerTable& workers, std::size_t slot);
  Exposed speed_of(const Worker& worker) const noexcept;

  HazardTable hazards_;
  std::vector<double> shown_per_s_;  // by domain: hazard in its workers' columns
  bool is_dirty_{false};

 public:
  ExposureTable exposures;

  template <typename Image>
  void image(Image& image) {
    image(hazards_, shown_per_s_, is_dirty_, exposures);
  }
};

// Upper bound on the time until every turn on a borrowed worker runs again, if all borrowed workers
// are revoked now. It is the sum of three times: the grace period, the prefill of the dedicated
// workers' backlog and of all moved prompts, and the prefill of the longest prompt on the slowest
// worker. If dedicated workers lack room or seats for all turns at once, the turns need several
// rounds. Then the bound also includes, for each round, the time of the longest turn. Infinite if a
// job with turns on borrowed workers has no dedicated worker.
double recovery_bound_s(const WorkerTable& workers, const TrajectoryTable& trajectories,
                        std::size_t jobs, const Settings& settings);

}  // namespace rose::scheduler
