// Whether serving can bear one more quantum of rollouts, and the record that says why.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "slo/certificate_log.h"
#include "slo/latency_model.h"

namespace rose::slo {

// What stands between serving and the borrower: a gate, seen from here.
class ServingListener {
 public:
  virtual ~ServingListener() = default;
  // A request arrived: no rollout segment may start from now on.
  virtual void busy() noexcept = 0;
  // The last request finished.
  virtual void idle() noexcept = 0;
};

// What serving has to do, and whether its host is alive.
//
// 1. pending rises before the gate closes, and the gate closes before arrived() returns.
// 2. In the log's order a request arrives before it finishes, and wherever pending was seen as 0
//    inside the log's decision mutex, the records before that point say 0 too: an arrival counts
//    before it is recorded, an end is recorded before it counts.
//
// Any thread. A heartbeat is a word of the serving host; without a first one, none is fresh.
class ServingState {
 public:
  ServingState(std::shared_ptr<CertificateLog> log, std::shared_ptr<ServingListener> listener)
      : log_{std::move(log)}, listener_{std::move(listener)} {}

  void arrived(std::uint64_t tokens) noexcept;
  // False, and nothing changes, when no request is pending: the caller counted wrong.
  bool finished() noexcept;
  void beat() noexcept { heartbeat_ns_.store(log_->now_ns()); }

  std::int64_t pending() const noexcept { return pending_.load(); }
  // Never negative; the largest value when there never was a heartbeat.
  Nanoseconds heartbeat_age_ns(Nanoseconds now_ns) const noexcept;

 private:
  static constexpr Nanoseconds kNever = -1;

  std::shared_ptr<CertificateLog> log_;
  std::shared_ptr<ServingListener> listener_;
  std::atomic<std::int64_t> pending_{0};
  std::atomic<Nanoseconds> heartbeat_ns_{kNever};
};

// The request that could arrive right after the grant, at its worst.
struct NextRequest {
  Features largest_step;   // the heaviest decode step serving would run before it
  Features largest_chunk;  // its heaviest prefill chunk
};

struct QuantumQuery {
  std::uint32_t close_epoch{0};
  std::uint32_t passed{0};
  std::uint32_t outstanding{0};
  double segment_upper_ms{0};  // > 0: what one segment takes at most
};

enum class QuantumRefusal : std::uint8_t {
  kNone = 0,
  kServingBusy,
  kNoHeartbeat,
  kSloAtRisk,
  kEnough,  // what is outstanding is all that fits
  kLogBroken,
};
inline constexpr std::size_t kQuantumRefusals = 6;

// Mode `idle`. Grants n segments, outstanding ones included, only if
// 1. no serving request is pending,
// 2. the serving host's last heartbeat is at most heartbeat_ttl old,
// 3. n * segment_upper + signal <= blocking_ms, and
// 4. n * segment_upper + signal + max(step_upper, chunk_upper) <= ttft_ms,
// 5. and the record with all these terms is in the log. The targets are those of the log's header.
//
// A granted quantum may be overtaken by an arrival before it takes effect. That is the gate's to
// settle, and it does: see Creditor, invariant 3.
class QuantumCertifier {
 public:
  QuantumCertifier(std::shared_ptr<const ServingState> serving,
                   std::shared_ptr<const LatencyModel> model, std::shared_ptr<CertificateLog> log,
                   NextRequest next) noexcept
      : serving_{std::move(serving)}, model_{std::move(model)}, log_{std::move(log)}, next_{next} {}

  // The number of segments granted; 0 is a refusal, and last_refusal() says which.
  std::uint32_t decide(const QuantumQuery& query) noexcept;

  QuantumRefusal last_refusal() const noexcept { return last_refusal_.load(); }
  std::uint64_t refused(QuantumRefusal why) const noexcept {
    return refused_[static_cast<std::size_t>(why)].load();
  }

 private:
  QuantumRefusal fill(const QuantumQuery& query, Quantum& record) const noexcept;
  QuantumRefusal grant(Quantum& record) noexcept;

  std::shared_ptr<const ServingState> serving_;
  std::shared_ptr<const LatencyModel> model_;
  std::shared_ptr<CertificateLog> log_;
  NextRequest next_;
  std::atomic<QuantumRefusal> last_refusal_{QuantumRefusal::kNone};
  std::array<std::atomic<std::uint64_t>, kQuantumRefusals> refused_{};
};

}  // namespace rose::slo
