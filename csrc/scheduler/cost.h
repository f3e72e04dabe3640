// What JOINT holds against a worker, in seconds.
#pragma once

#include <cstddef>
#include <vector>

#include "scheduler/settings.h"
#include "scheduler/worker_table.h"

namespace rose::scheduler {

// A turn as the cost sees it. Token counts and versions are doubles, as in the columns.
struct CostQuery {
  double prompt_tokens{0};    // to compute, were nothing cached
  double expected_tokens{0};  // it will still generate
  double urgency{0};          // 0 in bulk, 1 in the tail
  double published{0};        // the newest version

  bool operator==(const CostQuery&) const = default;
};

// With u the urgency:
//   (1 + a u) own + others + (1 + b u) risk + c gap
//   own     the worker's backlog, the prompt less `cached_tokens`, the expected tokens
//   others  what the turns there lose: slower steps, and steps that wait for this prompt
//   risk    odds of a revocation within `own`, times computing the prompt again and queueing
//   gap     how many versions the worker is behind; one that is ahead gains
double cost_s(const Settings& settings, const WorkerColumns& workers, std::size_t slot,
              const CostQuery& query, double cached_tokens) noexcept;

// The same for every slot with nothing cached, whether it can take the turn or not: without a
// branch the loop takes several workers at once. Bit by bit the same in every build for one
// architecture.
void scan_costs_s(const Settings& settings, const WorkerColumns& workers, const CostQuery& query,
                  std::vector<double>& costs_s);

}  // namespace rose::scheduler
