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

// Several workers at once. The compiler makes of it what the processor has. Without AVX in the
// flags it aligns them to half their size, but counts on all of it where a function has AVX:
// whatever holds lanes in memory is aligned by hand.
inline constexpr std::size_t kLanes = 4;
using Lanes = double __attribute__((vector_size(kLanes * sizeof(double))));
// Rows that are looked at together. Columns by row end with a whole block.
inline constexpr std::size_t kBlock = 8 * kLanes;

// What the cost takes of a worker, or of several. But for the risk it is a sum of these, each times
// something of the turn: most of the work is done when the worker changes.
template <typename Number>
struct alignas(sizeof(Number)) WorkerRates {
  Number backlog_s;            // until this turn's prompt begins
  Number per_prompt_token_s;   // as slow as the worker is
  Number per_token_s;          // a step with one turn more, but for that turn's context
  Number per_context_token_s;  // of that context, each step
  Number others_per_token_s;   // what the turns there lose by one more, but for its context
  Number turns;
  Number hazard_per_s;
  Number redo_per_token_s;  // elsewhere, as fast as the worker says it is
  Number version;

  template <typename Rate>
  void each(const WorkerRates<double>& other, Rate&& rate) {
    rate(backlog_s, other.backlog_s);
    rate(per_prompt_token_s, other.per_prompt_token_s);
    rate(per_token_s, other.per_token_s);
    rate(per_context_token_s, other.per_context_token_s);
    rate(others_per_token_s, other.others_per_token_s);
    rate(turns, other.turns);
    rate(hazard_per_s, other.hazard_per_s);
    rate(redo_per_token_s, other.redo_per_token_s);
    rate(version, other.version);
  }
};

// The rates of many workers, several beside one another, so that one pass over them has all costs.
class CostTable {
 public:
  static constexpr std::size_t padded(std::size_t rows) noexcept {
    return (rows + kBlock - 1) / kBlock * kBlock;
  }
  void resize(std::size_t rows) { lanes_.resize(padded(rows) / kLanes); }
  void set(std::size_t row, const WorkerColumns& workers, std::size_t slot) noexcept;
  // cost_s() of every row with nothing cached, whether it can take the turn or not: without a
  // branch several are taken at once. Bit by bit what cost_s() says, in every build for one
  // architecture. After the last row come up to kBlock - 1 costs of nobody.
  void scan(const Settings& settings, const CostQuery& query, std::vector<double>& costs_s) const;

 private:
  std::vector<WorkerRates<Lanes>> lanes_;
};

}  // namespace rose::scheduler
