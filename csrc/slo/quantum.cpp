#include "slo/quantum.h"

#include <algorithm>
#include <limits>

namespace rose::slo {

void ServingState::arrived(std::uint64_t tokens) noexcept {
  pending_.fetch_add(1);
  if (listener_ != nullptr) listener_->busy();
  log_->append(Arrived{.tokens = tokens});
}

bool ServingState::finished() noexcept {
  if (pending_.load() <= 0) return false;
  log_->append(Finished{});
  if (pending_.fetch_sub(1) == 1 && listener_ != nullptr) listener_->idle();
  return true;
}

Nanoseconds ServingState::heartbeat_age_ns(Nanoseconds now_ns) const noexcept {
  const Nanoseconds heartbeat_ns = heartbeat_ns_.load();
  if (heartbeat_ns == kNever) return std::numeric_limits<Nanoseconds>::max();
  return std::max<Nanoseconds>(now_ns - heartbeat_ns, 0);
}

std::uint32_t QuantumCertifier::decide(const QuantumQuery& query) noexcept {
  Quantum record{};
  QuantumRefusal refusal = fill(query, record);
  if (refusal == QuantumRefusal::kNone) refusal = grant(record);
  last_refusal_.store(refusal);
  if (refusal == QuantumRefusal::kNone) return record.segments;
  refused_[static_cast<std::size_t>(refusal)].fetch_add(1);
  return 0;
}

// The terms that do not change with the next arrival, outside the decision mutex.
QuantumRefusal QuantumCertifier::fill(const QuantumQuery& query, Quantum& record) const noexcept {
  const LogHeader& targets = log_->header();
  const auto step = model_->forecast(next_.largest_step);
  const auto chunk = model_->forecast(next_.largest_chunk);
  if (!step.ok() || !chunk.ok() || !(query.segment_upper_ms > 0)) return QuantumRefusal::kSloAtRisk;
  record.segment_upper_ms = query.segment_upper_ms;
  record.signal_ms = targets.signal_ms;
  record.step_upper_ms = step.value().upper_ms;
  record.chunk_upper_ms = chunk.value().upper_ms;
  record.ttft_ms = targets.ttft_ms;
  record.blocking_ms = targets.blocking_ms;
  record.outstanding = query.outstanding;
  record.passed = query.passed;
  record.close_epoch = query.close_epoch;

  const double next_ms = std::max(record.step_upper_ms, record.chunk_upper_ms);
  for (std::uint32_t segments = targets.max_segments; segments > 0; --segments) {
    const double quantum_ms = segments * query.segment_upper_ms;
    if (quantum_ms + targets.signal_ms > targets.blocking_ms) continue;
    if (quantum_ms + targets.signal_ms + next_ms > targets.ttft_ms) continue;
    record.segments = segments;
    record.quantum_ms = quantum_ms;
    if (segments < query.outstanding) return QuantumRefusal::kSloAtRisk;
    return segments == query.outstanding ? QuantumRefusal::kEnough : QuantumRefusal::kNone;
  }
  return QuantumRefusal::kSloAtRisk;
}

// Looks at serving and records the grant in one critical section, so the log tells the true order.
QuantumRefusal QuantumCertifier::grant(Quantum& record) noexcept {
  CertificateLog::Section section{*log_};
  if (serving_->pending() != 0) return QuantumRefusal::kServingBusy;
  record.heartbeat_age_ns = serving_->heartbeat_age_ns(log_->now_ns());
  if (record.heartbeat_age_ns > log_->header().heartbeat_ttl_ns) {
    return QuantumRefusal::kNoHeartbeat;
  }
  return section.append(record) ? QuantumRefusal::kNone : QuantumRefusal::kLogBroken;
}

}  // namespace rose::slo
