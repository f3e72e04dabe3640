// Chooses the best worker for a turn: an exact argmin over all workers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "scheduler/cost.h"
#include "scheduler/exposure.h"
#include "scheduler/leasts.h"
#include "scheduler/lineup.h"
#include "scheduler/settings.h"
#include "scheduler/worker_table.h"

namespace rose::scheduler {

// A turn that needs a worker.
struct Query : CostQuery {
  std::size_t job{0};             // only this job's workers may run the turn
  double need_tokens{0};          // reservation at the start
  double most_tokens{0};          // largest possible reservation; the worker must fit it
  bool prefers_dedicated{false};  // any dedicated worker is better than a borrowed one
  double version_floor{0};        // oldest allowed version of the worker
  double version_ceiling{static_cast<double>(kCountMax)};  // newest allowed version of the worker
  std::optional<std::size_t> home{};   // slot of the worker that has, or had, the cache
  double hit_tokens{0};                // prompt tokens cached at home; the home is warm if > 0
  std::optional<std::size_t> avoid{};  // slot that may not run the turn now
  double restart_tokens{0};            // tokens of the prompt if the turn ran before, else 0
  double burst_tokens{0};              // token limit of a worker's concurrent restarted prompts
  // If true, the turn may have killed its last worker. It restarts on a worker only while no other
  // prompt does, so that two such turns are never lost together.
  bool is_suspect{false};
  bool is_urgent{false};
  // If true, the turn takes only room that no cache uses, except at its warm home.
  bool spares_caches{false};
  // A worker other than the warm home must lend this many tokens per resident (turn or cache), this
  // turn included; 0 for no condition.
  double resident_tokens{0};
  bool may_wait{false};                     // the turn may wait until a worker commits new weights
  double since_published_s{0};              // age of the job's newest version
  const ExposureTable* exposures{nullptr};  // limits the turn's borrowed domains; null: no limit
};

// Pure except for scratch memory: the same columns and query give the same slot. Among equals the
// worker with the smaller number wins.
//
// JOINT takes the lowest cost_s().
class Placement {
 public:
  Placement(const Settings& settings, PlacementPolicy policy) noexcept
      : settings_{settings}, policy_{policy} {}

  // True if the worker could take the turn now if its job were not barred there.
  static bool could_if_not_barred(const WorkerColumns& workers, std::size_t slot,
                                  const Query& query) noexcept;
  // The slot of the best worker that can take the turn now; none if the turn must wait.
  // Every call must pass the same table.
  std::optional<std::size_t> choose(WorkerTable& workers, const Query& query);
  // After choose() found nothing: time until the commit of a worker that will then be the best; 0
  // if there is no such worker.
  double wait_s() const noexcept { return wait_s_; }

 private:
  // Here `prefers_dedicated` excludes borrowed workers.
  std::optional<std::size_t> choose_by_policy(WorkerTable& workers, const Query& query);
  // Computes the cost of every worker of the lineup with nothing cached.
  void price(const WorkerColumns& workers, const CostQuery& query);
  // The row of the cheapest worker of the lineup that can take the turn.
  std::optional<std::size_t> cheapest(const WorkerColumns& workers, const Query& query);
  // Finds the same row by a full search. Needed if the cheapest worker with room cannot take the
  // turn.
  std::optional<std::size_t> cheapest_able(const WorkerColumns& workers,
                                           const Query& query) const noexcept;
  std::optional<std::size_t> joint(const WorkerColumns& workers, const Query& query);
  // Time until the commit of a worker that will then cost less than `cost_s`; 0 without one.
  double soon_s(const WorkerColumns& workers, const Query& query, double cost_s) const noexcept;
  std::optional<std::size_t> rose_published(const WorkerColumns& workers,
                                            const Query& query) const noexcept;
  std::optional<std::size_t> least_loaded_sticky(const WorkerColumns& workers,
                                                 const Query& query) const noexcept;

  Settings settings_;
  PlacementPolicy policy_;
  Lineup lineup_;
  CostQuery priced_;             // query of costs_s_
  std::vector<double> costs_s_;  // by row of the lineup
  Leasts leasts_;                // of costs_s_
  double wait_s_{0};
};

}  // namespace rose::scheduler
