// Where a turn runs best: an exact argmin over all workers.
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

// A turn that wants a worker.
struct Query : CostQuery {
  std::size_t job{0};                  // whose workers may run it
  double need_tokens{0};               // it takes of a lease now
  double most_tokens{0};               // it may take at last: a worker must be able to hold it
  bool prefers_dedicated{false};       // to any borrowed worker
  double version_floor{0};             // of a worker that may run it
  std::optional<std::size_t> home{};   // the worker that had it last
  double hit_tokens{0};                // of the prompt, cached at home
  std::optional<std::size_t> avoid{};  // may not run it now
  double restart_tokens{0};            // its prompt, if it ran before
  double burst_tokens{0};              // of restarted prompts a worker computes at once
  bool is_urgent{false};
  bool spares_caches{false};  // away from its warm home it takes only room that no cache uses
  // Another worker than its warm home must lend so many for each resident, this turn included; 0:
  // it need not.
  double resident_tokens{0};
  bool may_wait{false};         // for workers that have yet to commit the newest version
  double since_published_s{0};  // of the job's newest version
  const ExposureTable* exposures{nullptr};  // of the domains of borrowed workers, to be kept low
};

// Pure but for scratch memory: the same columns and query give the same slot. Among equals the
// worker with the smaller number wins.
//
// JOINT takes the lowest cost_s().
class Placement {
 public:
  Placement(const Settings& settings, Policy policy) noexcept
      : settings_{settings}, policy_{policy} {}

  // Whether the worker could take the turn now, were its job not ahead of others there.
  static bool could_if_not_barred(const WorkerColumns& workers, std::size_t slot,
                                  const Query& query) noexcept;
  // The slot of the best worker that can take the turn now, or nothing: it waits.
  // Always of the same table.
  std::optional<std::size_t> choose(WorkerTable& workers, const Query& query);
  // After choose() found nothing: for how long the turn is to wait for a worker that will be the
  // best once it has committed; 0 if that is not why.
  double wait_s() const noexcept { return wait_s_; }

 private:
  // Here `prefers_dedicated` rules borrowed workers out.
  std::optional<std::size_t> choose_by_policy(WorkerTable& workers, const Query& query);
  // What every worker of the lineup would cost with nothing cached.
  void price(const WorkerColumns& workers, const CostQuery& query);
  // The row of the lineup.
  std::optional<std::size_t> cheapest(const WorkerColumns& workers, const Query& query);
  // The same, where the cheapest with room cannot take it.
  std::optional<std::size_t> cheapest_able(const WorkerColumns& workers,
                                           const Query& query) const noexcept;
  std::optional<std::size_t> joint(const WorkerColumns& workers, const Query& query);
  // How long until a worker has committed that would then cost less than this; 0 if there is none.
  double soon_s(const WorkerColumns& workers, const Query& query, double cost_s) const noexcept;
  std::optional<std::size_t> rose_published(const WorkerColumns& workers,
                                            const Query& query) const noexcept;
  std::optional<std::size_t> least_loaded_sticky(const WorkerColumns& workers,
                                                 const Query& query) const noexcept;

  Settings settings_;
  Policy policy_;
  Lineup lineup_;
  CostQuery priced_;             // what costs_s_ are the costs of
  std::vector<double> costs_s_;  // by row of the lineup
  Leasts leasts_;                // of these
  double wait_s_{0};
};

}  // namespace rose::scheduler
