// The cost of running a turn on a worker, in seconds, under the policy JOINT.
#pragma once

#include <cstddef>
#include <vector>

#include "scheduler/settings.h"
#include "scheduler/worker_table.h"

namespace rose::scheduler {

// The properties of a turn that its cost depends on. Token counts and versions are doubles, as in
// the columns.
struct CostQuery {
  double prompt_tokens{0};    // to compute if nothing is cached
  double expected_tokens{0};  // still to be generated
  double urgency{0};          // 0 in bulk, 1 in the tail
  double published{0};        // the newest version

  bool operator==(const CostQuery&) const = default;
};

// Returns the cost. It is
//   (1 + a u) own + others + (1 + b u) risk + c gap
//   u       the turn's urgency
//   a, b, c the settings urgent_time_weight, urgent_risk_weight and staleness_s_per_version
//   own     time for the worker's backlog, the prompt less `cached_tokens`, the expected tokens
//   others  delay of the worker's other turns: slower steps, and steps that wait for this prompt
//   risk    probability of a revocation within `own`, times the time to queue and recompute
//   gap     versions that the worker is behind; negative if it is ahead
double cost_s(const Settings& settings, const WorkerColumns& workers, std::size_t slot,
              const CostQuery& query, double cached_tokens) noexcept;

// Values of several workers at once; the compiler maps lanes to the processor's vectors. Without
// AVX in its flags, the compiler aligns lanes to half their size, but functions with AVX assume
// full alignment. So types that hold lanes in memory set their alignment themselves.
inline constexpr std::size_t kLanes = 4;
using Lanes = double __attribute__((vector_size(kLanes * sizeof(double))));
// Rows per block. Arrays with one element per row are padded to whole blocks.
inline constexpr std::size_t kBlock = 8 * kLanes;

// The properties of one worker, or of several, that a cost depends on. Except for the risk, the
// cost is a sum of these rates times values of the turn. So most of the work is done when a worker
// changes, and not when a turn is placed.
template <typename Number>
struct alignas(sizeof(Number)) WorkerRates {
  Number backlog_s;            // until the turn's prompt starts
  Number per_prompt_token_s;   // at the worker's measured pace
  Number per_token_s;          // a step with one more turn, without that turn's context
  Number per_context_token_s;  // step time per token of that context
  Number others_per_token_s;   // delay of the other turns by one more turn, without its context
  Number turns;
  Number hazard_per_s;
  Number redo_per_token_s;  // prefill on another worker; assumes this worker's nominal speed
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

// The rates of many workers in lanes, so that one pass computes all costs.
class CostTable {
 public:
  static constexpr std::size_t padded(std::size_t rows) noexcept {
    return (rows + kBlock - 1) / kBlock * kBlock;
  }
  void resize(std::size_t rows) { lanes_.resize(padded(rows) / kLanes); }
  void set(std::size_t row, const WorkerColumns& workers, std::size_t slot) noexcept;
  // Computes cost_s() of every row, as if nothing were cached. Rows that cannot take the turn are
  // included, so that the loop has no branch. Bitwise equal to cost_s() in every build for one
  // architecture. Up to kBlock - 1 costs of padding follow the last row.
  void scan(const Settings& settings, const CostQuery& query, std::vector<double>& costs_s) const;

 private:
  std::vector<WorkerRates<Lanes>> lanes_;
};

}  // namespace rose::scheduler
