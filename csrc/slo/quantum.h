// Decides whether serving can tolerate one more quantum of rollouts, and records the reasons.
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

// The worst request that could arrive right after the grant.
struct NextRequest {
  Features largest_step;   // heaviest decode step that may run before the request's first chunk
  Features largest_chunk;  // heaviest prefill chunk of the request
};

// The batch of serving's next step if it is already fixed: a request that arrives now can only join
// the step after it.
struct CommittedBatch {
  Features features;
  std::span<const std::uint32_t> slots;  // slots of the requests that get a token from it
};

struct QuantumQuery {
  HarvestMode mode{HarvestMode::kIdle};
  std::uint32_t close_epoch{0};
  std::uint32_t passed{0};       // segments started so far
  std::uint32_t outstanding{0};  // segments granted but not started
  double segment_upper_ms{0};    // > 0: longest duration of one segment
  // Length that a segment is expected to have; 0: segment_upper_ms is not measured, but expected.
  double expected_ms{0};
  bool is_request_expected{false};  // one is on its way to the engine
  std::optional<CommittedBatch> committed{};
};

enum class QuantumRefusal : std::uint8_t {
  kNone = 0,
  kServingBusy,
  kNoHeartbeat,
  kSloAtRisk,
  kEnough,  // no segments fit besides the outstanding ones
  kLogBroken,
  kNoEvidence,      // a step shape has run too seldom for a bound: run it to measure it
  kBudgetSpent,     // rollouts have delayed a running request by the allowed share
  kSegmentTooLong,  // a segment of the expected length would fit, but the measured ones are longer
};
inline constexpr std::size_t kQuantumRefusals = 9;

// The reason why even a quantum of one segment was refused: the limit that it would have exceeded,
// and the step shape that had to fit within that limit, too.
enum class BindingShape : std::uint8_t { kSegment = 0, kStep, kChunk };
enum class BindingTarget : std::uint8_t { kBlocking = 0, kTtft, kTpot, kDeadline, kBudget };
struct Binding {
  BindingShape shape{BindingShape::kSegment};  // the segment alone, or the longer of step and chunk
  BindingTarget target{BindingTarget::kBlocking};
  double predicted_ms{0};  // prediction for the shape
  double upper_ms{0};      // bound of the shape; infinite without evidence
  double delay_ms{0};      // one segment and signal_ms
  double target_ms{0};     // limit for the delay and the shape together
};

// Why the newest refusal with kSegmentTooLong was one.
struct SegmentLimit {
  double measured_ms{0};  // segment_upper_ms of the query
  double limit_ms{0};     // longest segment that fits the targets
};

struct QuantumGrant {
  std::uint32_t segments{0};  // may start after `passed`, outstanding ones included; 0: refused
  Nanoseconds until_ns{0};    // end of a quantum that starts at the decision
};

// Grants n segments, outstanding ones included, only if all of this holds, where delay is
// n * segment_upper + signal_ms:
//
// 1. the serving host's last heartbeat is at most heartbeat_ttl old,
// 2. delay <= blocking_ms,
// 3. delay + first token <= ttft_ms, where a first token takes max(step_upper, chunk_upper),
//    or their sum after a committed batch; and, once a request has arrived prefilled,
//    delay + first token <= tpot_ms,
//    (A step shape without evidence has an infinite bound and is refused as kNoEvidence.)
// 4. idle, trial: no request is live or expected, and serving runs no step;
//    slack:   no request is expected or waits for its first token, and delay + next step ends
//             before the earliest deadline of a running request, where the next step takes
//             max(step_upper, chunk_upper), or step_upper alone when it is committed; and
//             delay <= ServingState::budget_ms,
// 5. and the record with all these terms is in the log.
//
// A trial is one segment. Rules 2 and 3 do not apply to it, since it is asked for after a refusal
// by them. Instead the whole wait that it can cause, min(delay, park_wait_ms), must be left of the
// wait budget, which is charged with the actual wait.
//
// wait_ms of the record is the longest wait that the quantum can cause, however long its segment
// runs: what the wait budget has left, and outside a trial segment_upper + signal_ms, but at most
// park_wait_ms. It is not part of any sum above.
//
// heartbeat_ttl, the targets and the other limits are those in the log's header.
//
// A running request's deadline is the time of its last token + tpot_ms. In idle mode, step and
// chunk are the largest possible. In slack mode, step is serving's next step. chunk is that step
// together with the most expensive prefill of a next request: the last chunk of the longest prompt,
// as large as still fits the step. A batch counts as committed only if it includes every running
// request. All reads and the record happen in one section of the log, so the log has the true
// order.
//
// A request may arrive before a granted quantum takes effect. The gate resolves that: see Creditor,
// invariant 3.
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
  // Nanoseconds during which a borrower that wanted to run was refused for this reason, or, for
  // kNone, had a quantum. Time without a decision does not count.
  Nanoseconds refused_ns(QuantumRefusal why) const noexcept {
    return spent_ns_[static_cast<std::size_t>(why)].load();
  }
  Nanoseconds granted_ns() const noexcept { return refused_ns(QuantumRefusal::kNone); }
  // Cause of the newest refusal with kSloAtRisk or kNoEvidence in which not even one segment
  // fitted; nothing before the first such refusal.
  std::optional<Binding> binding() const {
    const std::scoped_lock lock{binding_mutex_};
    return binding_;
  }
  // Nothing before the first refusal with kSegmentTooLong.
  std::optional<SegmentLimit> segment_limit() const {
    const std::scoped_lock lock{binding_mutex_};
    return segment_limit_;
  }
  const NextRequest& next() const noexcept { return next_; }
  const LogHeader& header() const noexcept { return log_->header(); }
  const ServingState& serving() const noexcept { return *serving_; }

 private:
  QuantumRefusal fill(const QuantumQuery& query, CertificateLog::Section& section,
                      QuantumRecord& record) const noexcept;
  // The predictions that belong to the bounds in a record. They are finite even without evidence.
  struct Means {
    double step_ms{0};
    double chunk_ms{0};
  };
  std::optional<Means> forecast(const QuantumQuery& query, const ServingLoad& load,
                                const CertificateLog::Section& section,
                                QuantumRecord& record) const noexcept;
  // The limit that a quantum would exceed.
  struct Misfit {
    BindingTarget target;
    double target_ms;
  };
  std::optional<Misfit> misfit(double quantum_ms, Nanoseconds now_ns,
                               const QuantumRecord& record) const noexcept;
  // Bound of the time of the next request's first token.
  double first_token_ms(const QuantumRecord& record) const noexcept;
  // The longest segment that fits the targets, which hold at all times, unlike deadlines.
  double longest_segment_ms(const QuantumRecord& record) const noexcept;
  void note_binding(const Misfit& misfit, const Means& means, double delay_ms,
                    const QuantumRecord& record) const noexcept;
  void note_time(Nanoseconds now_ns, QuantumRefusal outcome, double quantum_ms) noexcept;

  std::shared_ptr<const ServingState> serving_;
  std::shared_ptr<const LatencyModel> model_;
  std::shared_ptr<CertificateLog> log_;
  NextRequest next_;
  std::atomic<QuantumRefusal> last_refusal_{QuantumRefusal::kNone};
  std::array<std::atomic<std::uint64_t>, kQuantumRefusals> refused_{};
  std::array<std::atomic<std::uint64_t>, kHarvestModes> granted_{};
  std::array<std::atomic<Nanoseconds>, kQuantumRefusals> spent_ns_{};
  std::atomic<Nanoseconds> decided_ns_{0};  // time of the newest decision; 0 before the first
  std::atomic<QuantumRefusal> outcome_{QuantumRefusal::kNone};  // outcome of that decision
  std::atomic<Nanoseconds> holds_ns_{0};  // longest time for which that decision counts
  mutable std::mutex binding_mutex_;      // guards both members below
  mutable std::optional<Binding> binding_;
  mutable std::optional<SegmentLimit> segment_limit_;
};

}  // namespace rose::slo
