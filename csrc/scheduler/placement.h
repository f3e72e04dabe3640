// Where a turn runs best: an exact argmin over all workers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "scheduler/settings.h"
#include "scheduler/worker_table.h"

namespace rose::scheduler {

// A turn that wants a worker. Token counts and versions are doubles, as in the columns.
struct Query {
  double need_tokens{0};             // it takes of a lease
  double prompt_tokens{0};           // to compute, were nothing cached
  double expected_tokens{0};         // it will still generate
  double urgency{0};                 // 0 in bulk, 1 in the tail
  double published{0};               // the newest version
  double version_floor{0};           // of a worker that may run it
  std::optional<std::size_t> home;   // the worker that had it last, if it has a live lease
  double hit_tokens{0};              // of the prompt, cached at home
  std::optional<std::size_t> avoid;  // may not run it now
};

// Pure but for scratch memory: the same columns and query give the same slot. Among equals the
// worker with the smaller number wins.
//
// JOINT takes the lowest cost, in seconds. With u the urgency:
//   (1 + a u) own + (1 - u) others + (1 + b u) risk + c gap
//   own     the worker's backlog, the prompt less what home has cached, the expected tokens
//   others  what the turns there lose: slower steps, and steps that wait for this prompt
//   risk    odds of a revocation within `own`, times computing the prompt again and queueing
//   gap     how many versions the worker is behind
class Placement {
 public:
  Placement(const Settings& settings, Policy policy) noexcept
      : settings_{settings}, policy_{policy} {}

  // The slot of the best worker that can take the turn now, or nothing: it waits.
  std::optional<std::size_t> choose(const WorkerColumns& workers, const Query& query);

 private:
  std::optional<std::size_t> joint(const WorkerColumns& workers, const Query& query);
  std::optional<std::size_t> rose_published(const WorkerColumns& workers,
                                            const Query& query) const noexcept;
  std::optional<std::size_t> least_loaded_sticky(const WorkerColumns& workers,
                                                 const Query& query) const noexcept;

  Settings settings_;
  Policy policy_;
  std::vector<double> costs_s_;
};

}  // namespace rose::scheduler
