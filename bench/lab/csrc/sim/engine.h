// Simulates continuous batching with chunked prefill, in jumps between changes of the batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/clock.h"
#include "sim/world.h"

namespace rose::sim {

inline constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();

// A step generates one token for each of the n sequences whose prompts are computed, and computes
// up to `chunk_tokens` tokens of the other prompts, first come first served. It takes
//   (decode_step + n * per_sequence + (sum of their contexts) * per_context_token, or 0 if n is 0)
//   + (prompt tokens computed) / (prefill rate)
// of the engine's own time, which runs at `speed` times the world's time. A sequence that arrives
// during a step joins the batch at the end of the step. A sequence that leaves is gone at once, but
// does not shorten the step.
//
// Between two changes of the batch, steps differ only because each context grows by one token per
// step, so their durations are an arithmetic series. The duration of a jump over k steps is one
// sum, and a position within the jump is the root of a quadratic. The only approximation is that
// the end of each jump is rounded up to a nanosecond. Apart from that, a simulation of every single
// step gives the same result.
//
// A sequence is identified by its index in arrival order. When a sequence leaves, the indices of
// later ones decrease by one.
class SimulatedEngine {
 public:
  struct Progress {
    std::int64_t generated{0};
    std::int64_t computed{0};  // computed context, cached and generated tokens included
  };

  SimulatedEngine(const StepTimes& times, std::int64_t chunk_tokens, bool is_stepwise) noexcept;

  // From call to call, `now_ns` must not decrease, and must not pass next_ns() without a call of
  // advance().
  void set_speed(double speed, Nanoseconds now_ns) noexcept;
  // Adds a sequence of `context_tokens`. Its last `prompt_tokens` > 0 are not computed yet. After
  // them it generates `to_generate` > 0 tokens.
  void add(std::int64_t prompt_tokens, std::int64_t context_tokens, std::int64_t to_generate,
           Nanoseconds now_ns);
  // Removes a sequence, and returns its progress.
  Progress remove(std::size_t place, Nanoseconds now_ns);
  // Returns the progress of a sequence, in whole steps.
  Progress progress(std::size_t place, Nanoseconds now_ns) noexcept;

  // Time at which the batch next changes by itself; kNever if no step runs or the speed is 0.
  Nanoseconds next_ns() const noexcept { return next_ns_; }
  // Advances to `now_ns`. Removes finished sequences, and appends their indices in ascending order.
  void advance(Nanoseconds now_ns, std::vector<std::size_t>& finished);

  bool is_idle() const noexcept { return sequences_.empty(); }
  std::int64_t tokens_generated() const noexcept { return tokens_generated_; }
  // Busy time on the engine's own clock.
  double busy_ns() const noexcept { return busy_ns_; }

 private:
  enum class Phase : std::uint8_t { kComing = 0, kPrompt, kDecoding };

  struct Sequence {
    Phase phase;
    std::int64_t prompt_left;
    std::int64_t context;
    std::int64_t to_generate;
    std::int64_t since;  // decode_steps_ when it began to generate
  };

  Sequence* head() noexcept;
  void accrue(Nanoseconds now_ns) noexcept;
  // Duration of the first `steps` steps of this jump, which must have more steps.
  double work_ns(std::int64_t steps) const noexcept;
  std::int64_t steps_by(double work_ns) const noexcept;
  // Completes the first `steps` steps of this jump, which must have more steps. The rest becomes
  // the jump.
  void count(std::int64_t steps) noexcept;
  void settle(Nanoseconds now_ns) noexcept;
  // Shortens the jump so that it ends with the running step. Returns true if no step runs.
  bool cut(Nanoseconds now_ns) noexcept;
  void begin(Nanoseconds now_ns) noexcept;
  void set_next() noexcept;

  double prefill_ns_;  // per token
  double step_ns_;
  double sequence_ns_;
  double context_ns_;
  std::int64_t chunk_tokens_;
  bool is_stepwise_;

  std::vector<Sequence> sequences_;  // in arrival order
  std::int64_t decode_steps_{0};     // steps so far that generated tokens
  std::int64_t tokens_generated_{0};
  double speed_{1};
  double busy_ns_{0};

  // The jump has `steps_` steps. The first step takes `first_ns_`, each further step `slope_ns_`
  // more than the step before it, and the last step `last_ns_`. At `at_ns_`, `done_ns_` of their
  // total duration are done.
  std::int64_t steps_{0};
  std::int64_t decoding_{0};
  double first_ns_{0};
  double slope_ns_{0};
  double last_ns_{0};
  std::int64_t last_chunk_{0};
  double done_ns_{0};
  Nanoseconds at_ns_{0};
  Nanoseconds next_ns_{kNever};
};

}  // namespace rose::sim
