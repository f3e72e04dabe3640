#include "scheduler/cost.h"

#include <cstring>

namespace rose::scheduler {

namespace {

// Terms that are the same for all workers.
struct Turn {
  double prompt_tokens;
  double missing_tokens;
  double expected_tokens;
  double context_steps;  // tokens of the turn's context, summed over its steps
  double own_weight;
  double risk_weight;
  double gap_weight_s;
  double requeue_s;
  double published;
};

Turn turn_of(const Settings& settings, const CostQuery& query, double cached_tokens) noexcept {
  // The context grows: on average it contains the prompt and half of the expected tokens.
  const double context = query.prompt_tokens + query.expected_tokens / 2;
  return {.prompt_tokens = query.prompt_tokens,
          .missing_tokens = query.prompt_tokens - cached_tokens,
          .expected_tokens = query.expected_tokens,
          .context_steps = query.expected_tokens * context,
          .own_weight = 1 + settings.urgent_time_weight * query.urgency,
          .risk_weight = 1 + settings.urgent_risk_weight * query.urgency,
          .gap_weight_s = settings.staleness_s_per_version,
          .requeue_s = settings.requeue_s,
          .published = query.published};
}

WorkerRates<double> rates_of(const WorkerColumns& workers, std::size_t slot) noexcept {
  const double slowness = workers.slowness[slot];
  const double prefill_s = workers.prefill_s_per_token[slot];
  const double sequence_s = workers.step_s_per_sequence[slot];
  const double context_s = workers.step_s_per_context_token[slot];
  const double turns = workers.turns[slot];
  const double step_s =
      workers.step_s[slot] + sequence_s * (turns + 1) + context_s * workers.context_tokens[slot];
  return {.backlog_s = slowness * workers.backlog_tokens[slot] * prefill_s,
          .per_prompt_token_s = slowness * prefill_s,
          .per_token_s = slowness * step_s,
          .per_context_token_s = slowness * context_s,
          .others_per_token_s = slowness * turns * sequence_s,
          .turns = turns,
          .hazard_per_s = workers.hazard_per_s[slot],
          .redo_per_token_s = prefill_s,
          .version = workers.version[slot]};
}

// The cost on one worker or on several. Always inlined, so that each caller compiles it for its own
// instruction set. It returns nothing, because the way to return vectors depends on the instruction
// set.
template <typename Number>
[[gnu::always_inline]] inline void put_cost(const Turn& turn, const WorkerRates<Number>& worker,
                                            Number& cost_s) noexcept {
  const Number own_work_s = turn.missing_tokens * worker.per_prompt_token_s +
                            turn.context_steps * worker.per_context_token_s;
  const Number own_s = worker.backlog_s + own_work_s + turn.expected_tokens * worker.per_token_s;
  // The other turns wait while this prompt is computed, and their steps also read this context.
  const Number others_s =
      worker.turns * own_work_s + turn.expected_tokens * worker.others_per_token_s;
  // x / (1 + x) instead of 1 - exp(-x): nearly equal for small and large x, and exp is too slow.
  const Number revocations = worker.hazard_per_s * own_s;
  const Number redo_s = turn.prompt_tokens * worker.redo_per_token_s + turn.requeue_s;
  const Number risk_s = revocations / (1 + revocations) * redo_s;
  cost_s = turn.own_weight * own_s + others_s + turn.risk_weight * risk_s +
           turn.gap_weight_s * (turn.published - worker.version);
}

[[gnu::always_inline]] inline void scan_lanes(const Turn& same,
                                              const std::vector<WorkerRates<Lanes>>& workers,
                                              double* __restrict costs_s) noexcept {
  const Turn turn = same;  // a copy shows the compiler that `costs_s` does not overlap it
  for (const WorkerRates<Lanes>& some : workers) {
    Lanes costs;
    put_cost(turn, some, costs);
    std::memcpy(costs_s, &costs, sizeof costs);
    costs_s += kLanes;
  }
}

#if defined(__x86_64__)
// Compiled without fused multiply-add, so that its numbers equal those of the build without AVX2.
[[gnu::target("avx2")]] void scan_avx2(const Turn& turn,
                                       const std::vector<WorkerRates<Lanes>>& workers,
                                       double* costs_s) noexcept {
  scan_lanes(turn, workers, costs_s);
}
#endif

}  // namespace

double cost_s(const Settings& settings, const WorkerColumns& workers, std::size_t slot,
              const CostQuery& query, double cached_tokens) noexcept {
  double cost_s = 0;
  put_cost(turn_of(settings, query, cached_tokens), rates_of(workers, slot), cost_s);
  return cost_s;
}

void CostTable::set(std::size_t row, const WorkerColumns& workers, std::size_t slot) noexcept {
  lanes_[row / kLanes].each(rates_of(workers, slot),
                            [&](Lanes& mine, double rate) { mine[row % kLanes] = rate; });
}

void CostTable::scan(const Settings& settings, const CostQuery& query,
                     std::vector<double>& costs_s) const {
  costs_s.resize(lanes_.size() * kLanes);
  const Turn turn = turn_of(settings, query, 0);
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return scan_avx2(turn, lanes_, costs_s.data());
#endif
  scan_lanes(turn, lanes_, costs_s.data());
}

}  // namespace rose::scheduler
