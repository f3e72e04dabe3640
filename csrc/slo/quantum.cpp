#include "slo/quantum.h"

#include <algorithm>
#include <cmath>

namespace rose::slo {

namespace {

// The time from a decision to the next one counts for the decision, but at most this time beyond
// its quantum. While a borrower wants to run, a creditor decides every poll_ms, 5 ms by default. So
// in a longer pause no borrower wanted to run.
constexpr Nanoseconds kSilenceNs = 50'000'000;

}  // namespace

QuantumGrant QuantumCertifier::decide(const QuantumQuery& query) noexcept {
  QuantumRecord record{};
  QuantumGrant grant;
  QuantumRefusal refusal = QuantumRefusal::kNone;
  {
    CertificateLog::Section section{*log_};
    refusal = fill(query, section, record);
    if (refusal == QuantumRefusal::kNone && !section.append(record)) {
      refusal = QuantumRefusal::kLogBroken;
    }
    grant.until_ns = section.now_ns() + static_cast<Nanoseconds>(record.quantum_ms * 1e6);
    note_time(section.now_ns(), refusal, record.quantum_ms);
  }
  last_refusal_.store(refusal);
  if (refusal != QuantumRefusal::kNone) {
    refused_[static_cast<std::size_t>(refusal)].fetch_add(1);
    return grant;
  }
  granted_[static_cast<std::size_t>(query.mode)].fetch_add(1);
  grant.segments = record.segments;
  return grant;
}

QuantumRefusal QuantumCertifier::fill(const QuantumQuery& query, CertificateLog::Section& section,
                                      QuantumRecord& record) const noexcept {
  const LogHeader& header = log_->header();
  const bool is_busy = query.mode == HarvestMode::kSlack
                           ? serving_->waiting() != 0
                           : serving_->pending() != 0 || serving_->is_in_step();
  if (is_busy || query.is_request_expected) return QuantumRefusal::kServingBusy;
  if (!header.may(query.mode)) return QuantumRefusal::kServingBusy;
  record.heartbeat_age_ns = serving_->heartbeat_age_ns(section.now_ns());
  if (record.heartbeat_age_ns > header.heartbeat_ttl_ns) return QuantumRefusal::kNoHeartbeat;
  const ServingLoad load = serving_->load(section);
  if (!(query.segment_upper_ms > 0)) return QuantumRefusal::kSloAtRisk;
  const auto means = forecast(query, load, section, record);
  if (!means) return QuantumRefusal::kSloAtRisk;
  if (load.running > 0) {
    record.deadline_ns = load.oldest_token_ns + static_cast<Nanoseconds>(header.tpot_ms * 1e6);
  }
  record.segment_upper_ms = query.segment_upper_ms;
  record.outstanding = query.outstanding;
  record.passed = query.passed;
  record.close_epoch = query.close_epoch;
  record.pending = load.running;
  record.mode = query.mode;
  if (query.mode == HarvestMode::kSlack) record.budget_ms = serving_->budget_ms(section);
  const bool is_trial = query.mode == HarvestMode::kTrial;
  const double delay_ms = query.segment_upper_ms + header.signal_ms;
  const double left_ms = static_cast<double>(section.wait_left_ns()) / 1e6;
  record.wait_ms = std::min(header.park_wait_ms, (is_trial ? 0 : delay_ms) + left_ms);
  const bool has_bounds = std::isfinite(record.step_upper_ms + record.chunk_upper_ms);
  if (is_trial) {
    record.segments = 1;
    record.quantum_ms = query.segment_upper_ms;
    if (!has_bounds) return QuantumRefusal::kNoEvidence;
    const bool is_paid = std::min(delay_ms, header.park_wait_ms) <= left_ms;
    return is_paid && query.outstanding == 0 ? QuantumRefusal::kNone
                                             : QuantumRefusal::kSegmentTooLong;
  }

  std::optional<Misfit> misfit;
  for (std::uint32_t segments = header.max_segments; segments > 0; --segments) {
    const double quantum_ms = segments * query.segment_upper_ms;
    misfit = this->misfit(quantum_ms, section.now_ns(), record);
    if (misfit) continue;
    record.segments = segments;
    record.quantum_ms = quantum_ms;
    if (segments < query.outstanding) return QuantumRefusal::kSloAtRisk;
    return segments == query.outstanding ? QuantumRefusal::kEnough : QuantumRefusal::kNone;
  }
  if (misfit && misfit->target == BindingTarget::kBudget) return QuantumRefusal::kBudgetSpent;
  if (misfit) note_binding(*misfit, *means, delay_ms, record);
  const double limit_ms = longest_segment_ms(record);
  if (query.expected_ms > 0 && query.expected_ms <= limit_ms && limit_ms < query.segment_upper_ms) {
    const std::scoped_lock lock{binding_mutex_};
    segment_limit_ = {.measured_ms = query.segment_upper_ms, .limit_ms = limit_ms};
    return QuantumRefusal::kSegmentTooLong;
  }
  return has_bounds ? QuantumRefusal::kSloAtRisk : QuantumRefusal::kNoEvidence;
}

std::optional<QuantumCertifier::Means> QuantumCertifier::forecast(
    const QuantumQuery& query, const ServingLoad& load, const CertificateLog::Section& section,
    QuantumRecord& record) const noexcept {
  const LogHeader& header = log_->header();
  Features step = next_.largest_step;
  Features chunk = next_.largest_chunk;
  if (query.mode == HarvestMode::kSlack) {
    step = {.decode_sequences = static_cast<double>(load.running),
            .context_tokens = static_cast<double>(load.context_tokens),
            .prefill_tokens = 0};
    chunk.decode_sequences = step.decode_sequences;
    chunk.context_tokens += step.context_tokens;
    // In the worst case a full engine prefills one token of a prompt per step.
    chunk.prefill_tokens = std::max(chunk.prefill_tokens - step.decode_sequences, 1.0);
    if (query.committed && serving_->runs_within(query.committed->slots, section)) {
      step = query.committed->features;
      record.committed = 1;
    }
  }
  const auto step_forecast = model_->forecast(step);
  if (!header.has(Mechanism::kHypothetical)) chunk = step;
  const auto chunk_forecast = model_->forecast(chunk);
  if (!step_forecast.ok() || !chunk_forecast.ok()) return std::nullopt;
  const bool has_margin = header.has(Mechanism::kMargin);
  const auto bound = [&](const Forecast& one) {
    return has_margin ? one.upper_ms : one.predicted_ms;
  };
  record.step_upper_ms = bound(step_forecast.value());
  record.chunk_upper_ms = bound(chunk_forecast.value());
  return Means{.step_ms = step_forecast.value().predicted_ms,
               .chunk_ms = chunk_forecast.value().predicted_ms};
}

// The sums of docs/certificates.md, in the same order.
std::optional<QuantumCertifier::Misfit> QuantumCertifier::misfit(
    double quantum_ms, Nanoseconds now_ns, const QuantumRecord& record) const noexcept {
  const LogHeader& header = log_->header();
  const double next_ms = record.committed != 0
                             ? record.step_upper_ms
                             : std::max(record.step_upper_ms, record.chunk_upper_ms);
  const double first_token_ms = this->first_token_ms(record);
  const double delay_ms = quantum_ms + header.signal_ms;
  if (!(delay_ms <= header.blocking_ms)) {
    return Misfit{BindingTarget::kBlocking, header.blocking_ms};
  }
  if (!(delay_ms + first_token_ms <= header.ttft_ms)) {
    return Misfit{BindingTarget::kTtft, header.ttft_ms};
  }
  if (serving_->has_prefilled() && !(delay_ms + first_token_ms <= header.tpot_ms)) {
    return Misfit{BindingTarget::kTpot, header.tpot_ms};
  }
  if (record.mode == HarvestMode::kIdle) return std::nullopt;
  if (!(delay_ms <= record.budget_ms)) return Misfit{BindingTarget::kBudget, record.budget_ms};
  if (record.deadline_ns == 0) return std::nullopt;
  const double left_ms = static_cast<double>(record.deadline_ns - now_ns) / 1e6;
  if (delay_ms + next_ms <= left_ms) return std::nullopt;
  return Misfit{BindingTarget::kDeadline, left_ms};
}

double QuantumCertifier::first_token_ms(const QuantumRecord& record) const noexcept {
  return record.committed != 0 ? record.step_upper_ms + record.chunk_upper_ms
                               : std::max(record.step_upper_ms, record.chunk_upper_ms);
}

double QuantumCertifier::longest_segment_ms(const QuantumRecord& record) const noexcept {
  const LogHeader& header = log_->header();
  const double target_ms =
      serving_->has_prefilled() ? std::min(header.ttft_ms, header.tpot_ms) : header.ttft_ms;
  return std::min(header.blocking_ms, target_ms - first_token_ms(record)) - header.signal_ms;
}

void QuantumCertifier::note_binding(const Misfit& misfit, const Means& means, double delay_ms,
                                    const QuantumRecord& record) const noexcept {
  Binding out{.target = misfit.target, .delay_ms = delay_ms, .target_ms = misfit.target_ms};
  const bool is_chunk = record.chunk_upper_ms > record.step_upper_ms;
  if (misfit.target == BindingTarget::kBlocking) {
    out.predicted_ms = out.upper_ms = record.segment_upper_ms;
  } else {
    out.shape = is_chunk ? BindingShape::kChunk : BindingShape::kStep;
    out.predicted_ms = is_chunk ? means.chunk_ms : means.step_ms;
    out.upper_ms = is_chunk ? record.chunk_upper_ms : record.step_upper_ms;
  }
  const std::scoped_lock lock{binding_mutex_};
  binding_ = out;
}

// The time since the previous decision counts for the outcome of that decision.
void QuantumCertifier::note_time(Nanoseconds now_ns, QuantumRefusal outcome,
                                 double quantum_ms) noexcept {
  const Nanoseconds before_ns = decided_ns_.exchange(now_ns);
  const Nanoseconds holds_ns =
      holds_ns_.exchange(kSilenceNs + static_cast<Nanoseconds>(std::min(quantum_ms, 1e9) * 1e6));
  const auto was = static_cast<std::size_t>(
      outcome_.exchange(outcome == QuantumRefusal::kEnough ? QuantumRefusal::kNone : outcome));
  if (before_ns > 0 && now_ns > before_ns) {
    spent_ns_[was].fetch_add(std::min(now_ns - before_ns, holds_ns));
  }
}

}  // namespace rose::slo
