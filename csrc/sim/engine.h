// Continuous batching with chunked prefill, in jumps from one change of the batch to the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/clock.h"
#include "sim/world.h"

namespace rose::sim {

inline constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();

// A step gives each sequence whose prompt is computed one token, and computes up to `chunk_tokens`
// of the prompts, first come first served. It takes
//   (step + per_sequence n + per_context_token (sum of their contexts))  with n > 0 of them
//   + chunk / prefill rate
// of the engine's own time, which passes at `speed` times the time of the world. What comes while a
// step runs is in the batch from its end on; what leaves is gone at once, but the step takes as
// long as it would have.
//
// Between two changes of the batch all steps are alike but for contexts that grow by one token
// each: an arithmetic series, so a jump over k steps is one sum, and the place within it the root
// of a quadratic. With whole steps alone nothing is approximated but the rounding of each jump's
// end up to a nanosecond: stepping one by one gives the same.
//
// A sequence is known by its place in the order in which they came; when one leaves, those behind
// it move up.
class Engine {
 public:
  struct Progress {
    std::int64_t said{0};
    std::int64_t computed{0};  // of its context, what was cached and what it said included
  };

  Engine(const StepTimes& times, std::int64_t chunk_tokens, bool is_stepwise) noexcept;

  // Times never go back from call to call, and nobody passes next_ns() without advance().
  void set_speed(double speed, Nanoseconds now_ns) noexcept;
  // `prompt_tokens` > 0 of the `context_tokens` have to be computed; then it says `to_say` > 0.
  void add(std::int64_t prompt_tokens, std::int64_t context_tokens, std::int64_t to_say,
           Nanoseconds now_ns);
  // Tells what became of it, and forgets it.
  Progress remove(std::size_t place, Nanoseconds now_ns);
  // Counts whole steps, as an engine does.
  Progress progress(std::size_t place, Nanoseconds now_ns) noexcept;

  // When the batch changes by itself; kNever if it stands still.
  Nanoseconds next_ns() const noexcept { return next_ns_; }
  // Does what is due. Appends the places of those that have said all, ascending; they are
  // forgotten.
  void advance(Nanoseconds now_ns, std::vector<std::size_t>& finished);

  bool is_idle() const noexcept { return sequences_.empty(); }
  std::int64_t tokens_said() const noexcept { return tokens_said_; }
  // Its own time in which it computed.
  double busy_ns() const noexcept { return busy_ns_; }

 private:
  enum class Phase : std::uint8_t { kComing = 0, kPrompt, kSaying };

  struct Sequence {
    Phase phase;
    std::int64_t prompt_left;
    std::int64_t context;
    std::int64_t to_say;
    std::int64_t since;  // the count of steps when it began to say something
  };

  Sequence* head() noexcept;
  void accrue(Nanoseconds now_ns) noexcept;
  // Of the first `steps` of this jump, less than all.
  double work_ns(std::int64_t steps) const noexcept;
  std::int64_t steps_by(double work_ns) const noexcept;
  // Counts `steps` of this jump, less than all, and makes the jump what is left of it.
  void count(std::int64_t steps) noexcept;
  void settle(Nanoseconds now_ns) noexcept;
  // Lets the jump end with the step that runs; true if none does.
  bool cut(Nanoseconds now_ns) noexcept;
  void begin(Nanoseconds now_ns) noexcept;
  void set_next() noexcept;

  double prefill_ns_;  // of a token
  double step_ns_;
  double sequence_ns_;
  double context_ns_;
  std::int64_t chunk_tokens_;
  bool is_stepwise_;

  std::vector<Sequence> sequences_;  // in the order in which they came
  std::int64_t steps_said_{0};       // steps so far that gave tokens
  std::int64_t tokens_said_{0};
  double speed_{1};
  double busy_ns_{0};

  // The jump: `steps_` steps, the first takes `first_ns_`, each `slope_ns_` more than the one
  // before it, the last `last_ns_`; `done_ns_` of their work is done at `at_ns_`.
  std::int64_t steps_{0};
  std::int64_t saying_{0};
  double first_ns_{0};
  double slope_ns_{0};
  double last_ns_{0};
  std::int64_t last_chunk_{0};
  double done_ns_{0};
  Nanoseconds at_ns_{0};
  Nanoseconds next_ns_{kNever};
};

}  // namespace rose::sim
