#include "sim/engine.h"

#include <algorithm>
#include <cmath>

namespace rose::sim {

namespace {

// A jump that takes longer could overflow 64 bits, so its end counts as never.
constexpr double kFarNs = 4e18;

}  // namespace

SimulatedEngine::SimulatedEngine(const StepTimes& times, std::int64_t chunk_tokens,
                                 bool is_stepwise) noexcept
    : prefill_ns_{kNsPerS / times.prefill_tokens_per_s},
      step_ns_{times.decode_step_ms * kNsPerMs},
      sequence_ns_{times.decode_ms_per_sequence * kNsPerMs},
      context_ns_{times.decode_ms_per_context_token * kNsPerMs},
      chunk_tokens_{chunk_tokens},
      is_stepwise_{is_stepwise} {}

void SimulatedEngine::set_speed(double speed, Nanoseconds now_ns) noexcept {
  accrue(now_ns);
  speed_ = speed;
  set_next();
}

void SimulatedEngine::add(std::int64_t prompt_tokens, std::int64_t context_tokens,
                          std::int64_t to_generate, Nanoseconds now_ns) {
  const bool is_between = cut(now_ns);
  sequences_.push_back({Phase::kComing, prompt_tokens, context_tokens, to_generate, 0});
  if (is_between) begin(now_ns);
}

SimulatedEngine::Progress SimulatedEngine::remove(std::size_t place, Nanoseconds now_ns) {
  const Progress progress = this->progress(place, now_ns);
  const bool is_between = cut(now_ns);
  if (sequences_[place].phase == Phase::kDecoding) --decoding_;
  sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(place));
  if (is_between) begin(now_ns);
  return progress;
}

SimulatedEngine::Progress SimulatedEngine::progress(std::size_t place,
                                                    Nanoseconds now_ns) noexcept {
  settle(now_ns);
  const Sequence& sequence = sequences_[place];
  const bool is_decoding = sequence.phase == Phase::kDecoding;
  const std::int64_t generated = is_decoding ? decode_steps_ - sequence.since : 0;
  return {.generated = generated, .computed = sequence.context - sequence.prompt_left + generated};
}

void SimulatedEngine::advance(Nanoseconds now_ns, std::vector<std::size_t>& finished) {
  if (now_ns < next_ns_) return;
  accrue(now_ns);
  count(steps_ - 1);
  ++decode_steps_;
  tokens_generated_ += decoding_;
  const auto is_over = [&](const Sequence& sequence) {
    return sequence.phase == Phase::kDecoding &&
           decode_steps_ - sequence.since == sequence.to_generate;
  };
  for (std::size_t place = 0; place < sequences_.size(); ++place) {
    if (is_over(sequences_[place])) finished.push_back(place);
  }
  std::erase_if(sequences_, is_over);
  for (Sequence& sequence : sequences_) {
    if (sequence.phase != Phase::kPrompt) continue;
    const std::int64_t computed = std::min(last_chunk_, sequence.prompt_left);
    sequence.prompt_left -= computed;
    last_chunk_ -= computed;
    if (sequence.prompt_left > 0) break;
    sequence.phase = Phase::kDecoding;
    sequence.since = decode_steps_;
  }
  begin(now_ns);
}

SimulatedEngine::Sequence* SimulatedEngine::head() noexcept {
  for (Sequence& sequence : sequences_) {
    if (sequence.phase == Phase::kPrompt) return &sequence;
  }
  return nullptr;
}

void SimulatedEngine::accrue(Nanoseconds now_ns) noexcept {
  if (steps_ > 0) {
    const double work_ns = static_cast<double>(now_ns - at_ns_) * speed_;
    done_ns_ += work_ns;
    busy_ns_ += work_ns;
  }
  at_ns_ = now_ns;
}

double SimulatedEngine::work_ns(std::int64_t steps) const noexcept {
  const auto count = static_cast<double>(steps);
  return count * first_ns_ + slope_ns_ * (count * (count - 1) / 2);
}

std::int64_t SimulatedEngine::steps_by(double work) const noexcept {
  const double base_ns = first_ns_ - slope_ns_ / 2;
  const double root = std::sqrt(base_ns * base_ns + 2 * slope_ns_ * work);
  // This form of the root does not subtract two large numbers when the slope is small.
  const double guess = std::min(2 * work / (base_ns + root), static_cast<double>(steps_ - 1));
  auto steps = std::max<std::int64_t>(0, static_cast<std::int64_t>(guess));
  while (steps > 0 && work_ns(steps) > work) --steps;
  while (steps < steps_ - 1 && work_ns(steps + 1) <= work) ++steps;
  return steps;
}

void SimulatedEngine::count(std::int64_t steps) noexcept {
  if (steps == 0) return;
  if (Sequence* const first = head()) first->prompt_left -= steps * chunk_tokens_;
  done_ns_ -= work_ns(steps);
  first_ns_ += slope_ns_ * static_cast<double>(steps);
  steps_ -= steps;
  decode_steps_ += steps;
  tokens_generated_ += steps * decoding_;
}

void SimulatedEngine::settle(Nanoseconds now_ns) noexcept {
  accrue(now_ns);
  if (steps_ > 1) count(steps_by(done_ns_));
}

bool SimulatedEngine::cut(Nanoseconds now_ns) noexcept {
  settle(now_ns);
  if (steps_ == 0 || done_ns_ <= 0) return true;
  if (steps_ > 1) {
    steps_ = 1;
    last_ns_ = first_ns_;
    last_chunk_ = head() == nullptr ? 0 : chunk_tokens_;
    set_next();
  }
  return false;
}

void SimulatedEngine::begin(Nanoseconds now_ns) noexcept {
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  std::int64_t context_tokens = 0;
  std::int64_t backlog_tokens = 0;
  std::int64_t head_tokens = 0;
  std::int64_t steps = kNone;
  decoding_ = 0;
  for (Sequence& sequence : sequences_) {
    if (sequence.phase == Phase::kComing) sequence.phase = Phase::kPrompt;
    if (sequence.phase == Phase::kPrompt) {
      if (backlog_tokens == 0) head_tokens = sequence.prompt_left;
      backlog_tokens += sequence.prompt_left;
      continue;
    }
    const std::int64_t generated = decode_steps_ - sequence.since;
    ++decoding_;
    context_tokens += sequence.context + generated;
    // The jump ends at the first token of a sequence, so that the worker can report at once that
    // the prompt is computed.
    steps = std::min(steps, generated == 0 ? 1 : sequence.to_generate - generated);
  }
  if (head_tokens > 0) steps = std::min(steps, (head_tokens + chunk_tokens_ - 1) / chunk_tokens_);
  if (is_stepwise_ && steps != kNone) steps = 1;
  const auto count = static_cast<double>(decoding_);
  const double decode_ns = decoding_ == 0 ? 0
                                          : step_ns_ + sequence_ns_ * count +
                                                context_ns_ * static_cast<double>(context_tokens);
  steps_ = steps == kNone ? 0 : steps;
  const std::int64_t before_last = chunk_tokens_ * std::max<std::int64_t>(0, steps_ - 1);
  last_chunk_ = head_tokens > 0 ? std::min(chunk_tokens_, backlog_tokens - before_last) : 0;
  slope_ns_ = context_ns_ * count;
  first_ns_ = decode_ns + (head_tokens > 0 ? prefill_ns_ * static_cast<double>(chunk_tokens_) : 0);
  last_ns_ = decode_ns + slope_ns_ * static_cast<double>(std::max<std::int64_t>(0, steps_ - 1)) +
             prefill_ns_ * static_cast<double>(last_chunk_);
  done_ns_ = 0;
  at_ns_ = now_ns;
  set_next();
}

void SimulatedEngine::set_next() noexcept {
  next_ns_ = kNever;
  if (steps_ == 0 || speed_ <= 0) return;
  const double left_ns = (work_ns(steps_ - 1) + last_ns_ - done_ns_) / speed_;
  if (left_ns < kFarNs) {
    next_ns_ = at_ns_ + std::max<Nanoseconds>(0, static_cast<Nanoseconds>(std::ceil(left_ns)));
  }
}

}  // namespace rose::sim
