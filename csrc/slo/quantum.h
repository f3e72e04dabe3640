// Whether serving can bear one more quantum of rollouts, and the record that says why.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "base/clock.h"
#include "slo/certificate_log.h"
#include "slo/latency_model.h"
#include "slo/serving_state.h"

namespace rose::slo {

// The request that could arrive right after the grant, at its worst.
struct NextRequest {
  Features largest_step;   // the heaviest decode step an idle engine would run before it
  Features largest_chunk;  // its heaviest prefill chunk
};

// The batch of serving's next step, where it is fixed already: a request that arrives now can only
// be in the step after it.
struct CommittedBatch {
  Features features;
  std::span<const std::uint32_t> slots;  // of the requests that get a token by it
};

struct QuantumQuery {
  HarvestMode mode{HarvestMode::kIdle};
  std::uint32_t close_epoch{0};
  std::uint32_t passed{0};
  std::uint32_t outstanding{0};
  double segment_upper_ms{0};             // > 0: what one segment takes at most
  std::uint32_t most{~std::uint32_t{0}};  // segments that are asked for
  std::optional<CommittedBatch> committed{};
};

enum class QuantumRefusal : std::uint8_t {
  kNone = 0,
  kServingBusy,
  kNoHeartbeat,
  kSloAtRisk,
  kEnough,  // what is outstanding is all that fits
  kLogBroken,
  kNoEvidence,   // a step shape has run too seldom for a bound: run it as a probe
  kBudgetSpent,  // rollouts have slowed a running request down by the allowed share
};
inline constexpr std::size_t kQuantumRefusals = 8;

// The term that a refused quantum of one segment failed on.
enum class BindingShape : std::uint8_t { kSegment = 0, kStep, kChunk };
enum class BindingTarget : std::uint8_t { kBlocking = 0, kTtft, kTpot, kDeadline, kBudget };
struct Binding {
  BindingShape shape{BindingShape::kSegment};  // the longer of those that had to fit
  BindingTarget target{BindingTarget::kBlocking};
  double predicted_ms{0};  // of the shape
  double upper_ms{0};      // its bound; infinite without evidence
  double delay_ms{0};      // one segment and the signal
  double target_ms{0};     // what all of it had to fit into
};

// `segments` from `passed` on, those outstanding included; 0 is a refusal.
struct QuantumGrant {
  std::uint32_t segments{0};
  Nanoseconds until_ns{0};  // when a quantum that starts at the decision is over
};

// Grants n segments, outstanding ones included, only if, with delay = n * segment_upper + signal,
//
// 1. the serving host's last heartbeat is at most heartbeat_ttl old,
// 2. delay <= blocking_ms,
// 3. delay + first token <= ttft_ms, where a first token takes max(step_upper, chunk_upper),
//    or their sum behind a committed batch; and, once a request came prefilled,
//    delay + first token <= tpot_ms,
//    (A step shape without evidence has an infinite bound and is refused as kNoEvidence.)
// 4. idle:    no request is live, and serving is in no step;
//    slack:   none waits for its first token, and delay + next step is over before the earliest
//             deadline of those that run; the next step takes max(step_upper, chunk_upper), or
//             step_upper alone when it is committed; and delay <= ServingState::budget_ms,
// 5. and the record with all these terms is in the log. The targets are those of the log's header.
//
// A running request's deadline is its last token's time + tpot_ms. In idle mode step and chunk are
// the largest there can be; else the step is serving's next one, and the chunk that step with as
// many prompt tokens of a next request as one step takes, at the end of the longest prompt. A batch
// counts as committed only if it has every running request in it. Everything is looked at and
// recorded in one section of the log, so the log tells the true order.
//
// A granted quantum may be overtaken by an arrival before it takes effect. That is the gate's to
// settle, and it does: see Creditor, invariant 3.
class QuantumCertifier {
 public:
  QuantumCertifier(std::shared_ptr<const ServingState> serving,
                   std::shared_ptr<const LatencyModel> model, std::shared_ptr<CertificateLog> log,
                   NextRequest next) noexcept
      : serving_{std::move(serving)}, model_{std::move(model)}, log_{std::move(log)}, next_{next} {}

  QuantumGrant decide(const QuantumQuery& query) noexcept;

  QuantumRefusal last_refusal() const noexcept { return last_refusal_.load(); }
  std::uint64_t refused(QuantumRefusal why) const noexcept {
    return refused_[static_cast<std::size_t>(why)].load();
  }
  std::uint64_t granted(HarvestMode mode) const noexcept {
    return granted_[static_cast<std::size_t>(mode)].load();
  }
  // Nanoseconds during which somebody who wanted to run was refused for this reason, or had a
  // quantum. Time without a decision does not count.
  Nanoseconds refused_ns(QuantumRefusal why) const noexcept {
    return spent_ns_[static_cast<std::size_t>(why)].load();
  }
  Nanoseconds granted_ns() const noexcept { return refused_ns(QuantumRefusal::kNone); }
  // Of the newest refusal as kSloAtRisk or kNoEvidence, if there was one.
  std::optional<Binding> binding() const {
    const std::scoped_lock lock{binding_mutex_};
    return binding_;
  }
  const NextRequest& next() const noexcept { return next_; }
  // Of the newest grant.
  HarvestMode last_mode() const noexcept { return last_mode_.load(); }
  const LogHeader& header() const noexcept { return log_->header(); }
  const ServingState& serving() const noexcept { return *serving_; }

 private:
  QuantumRefusal fill(const QuantumQuery& query, const CertificateLog::Section& section,
                      Quantum& record) const noexcept;
  // The means behind the bounds of a record; a bound of a record is infinite without evidence.
  struct Means {
    double step_ms{0};
    double chunk_ms{0};
  };
  std::optional<Means> forecast(const QuantumQuery& query, const ServingLoad& load,
                                const CertificateLog::Section& section,
                                Quantum& record) const noexcept;
  // What does not fit, if anything.
  struct Misfit {
    BindingTarget target;
    double target_ms;
  };
  std::optional<Misfit> misfit(double quantum_ms, Nanoseconds now_ns,
                               const Quantum& record) const noexcept;
  void note_binding(const Misfit& misfit, const Means& means, double delay_ms,
                    const Quantum& record) const noexcept;
  void note_time(Nanoseconds now_ns, QuantumRefusal outcome, double quantum_ms) noexcept;

  std::shared_ptr<const ServingState> serving_;
  std::shared_ptr<const LatencyModel> model_;
  std::shared_ptr<CertificateLog> log_;
  NextRequest next_;
  std::atomic<QuantumRefusal> last_refusal_{QuantumRefusal::kNone};
  std::array<std::atomic<std::uint64_t>, kQuantumRefusals> refused_{};
  std::array<std::atomic<std::uint64_t>, kHarvestModes> granted_{};
  std::atomic<HarvestMode> last_mode_{HarvestMode::kIdle};
  std::array<std::atomic<Nanoseconds>, kQuantumRefusals> spent_ns_{};
  std::atomic<Nanoseconds> decided_ns_{0};  // the newest decision; 0 before the first
  std::atomic<QuantumRefusal> outcome_{QuantumRefusal::kNone};  // of it
  std::atomic<Nanoseconds> holds_ns_{0};                        // how long it counts at most
  mutable std::mutex binding_mutex_;                            // guards binding_
  mutable std::optional<Binding> binding_;
};

}  // namespace rose::slo
