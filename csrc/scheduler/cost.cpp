#include "scheduler/cost.h"

namespace rose::scheduler {

namespace {

// What is the same for all workers.
struct Terms {
  double prompt_tokens;
  double expected_tokens;
  double own_weight;
  double others_weight;
  double risk_weight;
  double gap_weight_s;
  double requeue_s;
  double published;
};

Terms terms_of(const Settings& settings, const CostQuery& query) noexcept {
  return {.prompt_tokens = query.prompt_tokens,
          .expected_tokens = query.expected_tokens,
          .own_weight = 1 + settings.urgent_time_weight * query.urgency,
          .others_weight = 1 - query.urgency,
          .risk_weight = 1 + settings.urgent_risk_weight * query.urgency,
          .gap_weight_s = settings.staleness_s_per_version,
          .requeue_s = settings.requeue_s,
          .published = query.published};
}

// One row of the columns.
[[gnu::always_inline]] inline double cost_of(const Terms& terms, double missing_tokens,
                                             double turns, double backlog, double prefill_s,
                                             double step_s, double sequence_s, double hazard_per_s,
                                             double version) noexcept {
  const double own_s = (backlog + missing_tokens) * prefill_s +
                       terms.expected_tokens * (step_s + sequence_s * (turns + 1));
  const double others_s = turns * (sequence_s * terms.expected_tokens + missing_tokens * prefill_s);
  // x / (1 + x) for 1 - exp(-x): the same at both ends, and a scan has no time for exp.
  const double revocations = hazard_per_s * own_s;
  const double redo_s = terms.prompt_tokens * prefill_s + terms.requeue_s;
  const double risk_s = revocations / (1 + revocations) * redo_s;
  return terms.own_weight * own_s + terms.others_weight * others_s + terms.risk_weight * risk_s +
         terms.gap_weight_s * (terms.published - version);
}

// Always inlined, so that each caller compiles it for its own instruction set.
[[gnu::always_inline]] inline void scan(const Terms& all, const WorkerColumns& workers,
                                        double* __restrict costs_s) noexcept {
  // Plain pointers and copies: the compiler has to see that nothing here overlaps.
  const Terms terms = all;
  const std::size_t count = workers.size();
  const double* const turns = workers.turns.data();
  const double* const backlog = workers.backlog_tokens.data();
  const double* const prefill_s = workers.prefill_s_per_token.data();
  const double* const step_s = workers.step_s.data();
  const double* const sequence_s = workers.step_s_per_sequence.data();
  const double* const hazard_per_s = workers.hazard_per_s.data();
  const double* const version = workers.version.data();
  for (std::size_t i = 0; i < count; ++i) {
    costs_s[i] = cost_of(terms, terms.prompt_tokens, turns[i], backlog[i], prefill_s[i], step_s[i],
                         sequence_s[i], hazard_per_s[i], version[i]);
  }
}

#if defined(__x86_64__)
// Without fused operations, so its numbers are those of the other. It takes 0.7 us for 1,024
// workers where two at a time take 1.7 us.
[[gnu::target("avx2")]] void scan_avx2(const Terms& terms, const WorkerColumns& workers,
                                       double* costs_s) noexcept {
  scan(terms, workers, costs_s);
}
#endif

}  // namespace

double cost_s(const Settings& settings, const WorkerColumns& workers, std::size_t slot,
              const CostQuery& query, double cached_tokens) noexcept {
  return cost_of(
      terms_of(settings, query), query.prompt_tokens - cached_tokens, workers.turns[slot],
      workers.backlog_tokens[slot], workers.prefill_s_per_token[slot], workers.step_s[slot],
      workers.step_s_per_sequence[slot], workers.hazard_per_s[slot], workers.version[slot]);
}

void scan_costs_s(const Settings& settings, const WorkerColumns& workers, const CostQuery& query,
                  std::vector<double>& costs_s) {
  costs_s.resize(workers.size());
  const Terms terms = terms_of(settings, query);
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return scan_avx2(terms, workers, costs_s.data());
#endif
  scan(terms, workers, costs_s.data());
}

}  // namespace rose::scheduler
