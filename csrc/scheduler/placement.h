// Where a turn runs best: an exact argmin over all workers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "scheduler/cost.h"
#include "scheduler/exposure.h"
#include "scheduler/settings.h"
#include "scheduler/worker_table.h"

namespace rose::scheduler {

// A turn that wants a worker.
struct Query : CostQuery {
  std::size_t job{0};                  // whose workers may run it
  double need_tokens{0};               // it takes of a lease now
  double most_tokens{0};               // it may take at last: a worker must be able to hold it
  bool is_dedicated_only{false};       // a borrowed worker may not run it
  double version_floor{0};             // of a worker that may run it
  std::optional<std::size_t> home{};   // the worker that had it last
  double hit_tokens{0};                // of the prompt, cached at home
  std::optional<std::size_t> avoid{};  // may not run it now
  double restart_tokens{0};            // its prompt, if it ran before
  double burst_tokens{0};              // of restarted prompts a worker computes at once
  bool is_urgent{false};
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
  std::optional<std::size_t> choose(const WorkerColumns& workers, const Query& query);
  // After choose() found nothing: for how long the turn is to wait for a worker that will be the
  // best once it has committed; 0 if that is not why.
  double wait_s() const noexcept { return wait_s_; }

 private:
  std::optional<std::size_t> cheapest(const WorkerColumns& workers,
                                      const Query& query) const noexcept;
  std::optional<std::size_t> joint(const WorkerColumns& workers, const Query& query);
  std::optional<std::size_t> rose_published(const WorkerColumns& workers,
                                            const Query& query) const noexcept;
  std::optional<std::size_t> least_loaded_sticky(const WorkerColumns& workers,
                                                 const Query& query) const noexcept;

  Settings settings_;
  Policy policy_;
  // How long until a worker has committed that would then cost less than this; 0 if there is none.
  double soon_s(const WorkerColumns& workers, const Query& query, double cost_s) const noexcept;

  std::vector<double> costs_s_;
  double wait_s_{0};
};

}  // namespace rose::scheduler
