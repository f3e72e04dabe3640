// The current work of serving: its live requests, and when each needs its next token.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "base/clock.h"
#include "base/histogram.h"
#include "slo/certificate_log.h"

namespace rose::slo {

// Receives serving's changes between idle and busy, to open or close the gate.
class ServingListener {
 public:
  virtual ~ServingListener() = default;
  // A request arrived: no rollout segment may start from now on.
  virtual void busy() noexcept = 0;
  // The last request finished.
  virtual void idle() noexcept = 0;
};

// The load that a certificate reads, in one section of the log.
struct ServingLoad {
  std::uint32_t running{0};         // requests that have their first token
  std::uint64_t context_tokens{0};  // prompts and outputs of the running requests
  // Each running request has a time of its last token; this is the earliest, or 0 without any.
  Nanoseconds oldest_token_ns{0};
};

// Token times of the requests that have a slot.
struct TokenTimes {
  Histogram first;  // from the arrival to the first token; not for prefilled prompts
  Histogram later;  // from a token, or a prefilled arrival, to the next token
};

// 1. pending and waiting rise before the gate closes, and the gate closes before arrived() returns.
// 2. In the log's order a request arrives before it finishes. If pending is 0 under the log's
//    decision mutex, the records so far also give 0: arrived() counts before it records, and
//    finished() records before it counts. The same holds for waiting.
// 3. A request beyond kSlots has no slot: the request counts as waiting until it finishes, so that
//    rollouts take no slack that the request may need.
//
// Any thread. A heartbeat is a sign of life of the serving host.
class ServingState {
 public:
  static constexpr std::uint32_t kSlots = 4096;
  static constexpr std::uint32_t kNoSlot = ~std::uint32_t{0};

  ServingState(std::shared_ptr<CertificateLog> log, std::shared_ptr<ServingListener> listener);

  // Counts a request that arrives, and returns its slot: the lowest free one, or kNoSlot. A
  // prefilled request runs at once, as if it had received a token now.
  std::uint32_t arrived(std::uint64_t tokens, bool is_prefilled = false) noexcept;
  // Records a token for each of these requests. The first token of a request ends its wait. Slots
  // without a request are skipped. Returns the number of tokens recorded. `is_late`: the tokens are
  // from some steps before, so only first tokens count in token_times().
  std::uint32_t emitted(std::span<const std::uint32_t> slots, bool is_late = false) noexcept;
  // False, with nothing changed, if the slot has no request: the caller miscounted.
  bool finished(std::uint32_t slot) noexcept;
  void beat() noexcept { heartbeat_ns_.store(log_->now_ns()); }
  // Notes that a step of serving runs. Until it ends, serving does not count as idle, even if all
  // its requests end meanwhile.
  void step_began() noexcept { steps_.fetch_add(1); }
  // False, with nothing changed, if no step was running.
  bool step_ended() noexcept;

  std::int64_t pending() const noexcept { return pending_.load(); }
  // Requests without a first token or without a slot.
  std::int64_t waiting() const noexcept { return waiting_.load(); }
  bool is_in_step() const noexcept { return steps_.load() > 0; }
  // Counted since construction; reading does not block serving.
  const TokenTimes& token_times() const noexcept { return *token_times_; }
  // True if a request has ever arrived prefilled. Such requests need their next token within the
  // TPOT target.
  bool has_prefilled() const noexcept { return has_prefilled_.load(); }
  // Never negative; the largest Nanoseconds value before the first heartbeat.
  Nanoseconds heartbeat_age_ns(Nanoseconds now_ns) const noexcept;
  ServingLoad load() const noexcept;
  // The same, for a caller that holds a section of the log.
  ServingLoad load(const CertificateLog::Section& section) const noexcept;
  // Milliseconds by which rollouts may still delay serving: the smallest budget of a running
  // request. The budget of a request is the slowdown's share of the time of the steps since the
  // request's first token, minus the request's delays so far, minus the delays promised since the
  // last step. Infinite if the slowdown is infinite; otherwise 0 if no request runs.
  double budget_ms(const CertificateLog::Section& section) const noexcept;
  // True if all running requests are in `slots`.
  bool runs_within(std::span<const std::uint32_t> slots,
                   const CertificateLog::Section& section) const noexcept;

 private:
  static constexpr Nanoseconds kNever = -1;
  static constexpr std::uint32_t kWords = kSlots / 64;

  enum class Phase : std::uint8_t { kFree, kWaiting, kRunning };
  // Running requests form a ring through kSlots in the order of their last tokens, oldest first.
  struct Request {
    std::uint64_t context_tokens{0};
    Nanoseconds last_token_ns{0};  // time of the arrival while the request waits
    double balance_ms{0};          // balance of the log at its first token
    std::uint32_t before{0};
    std::uint32_t after{0};
    Phase phase{Phase::kFree};
  };

  std::uint32_t take_slot() noexcept;
  void link_newest(std::uint32_t slot, Nanoseconds now_ns) noexcept;
  void unlink(std::uint32_t slot) noexcept;
  void give_token(std::uint32_t slot, const CertificateLog::Section& section) noexcept;
  bool is_live(std::uint32_t slot) const noexcept;
  void record_tokens(CertificateLog::Section& section,
                     std::span<const std::uint32_t> slots) noexcept;

  std::shared_ptr<CertificateLog> log_;
  std::shared_ptr<ServingListener> listener_;
  std::atomic<std::int64_t> pending_{0};
  std::atomic<std::int64_t> waiting_{0};
  std::atomic<std::int64_t> steps_{0};
  std::atomic<bool> has_prefilled_{false};
  std::atomic<Nanoseconds> heartbeat_ns_{kNever};

  // Guarded by the log's decision mutex.
  std::unique_ptr<std::array<Request, kSlots + 1>> requests_;  // the last one is the ring's anchor
  std::unique_ptr<TokenTimes> token_times_;                    // only writes need the mutex
  std::array<std::uint64_t, kWords> taken_{};                  // one bit per slot
  std::uint32_t running_{0};
  std::uint32_t slotless_{0};
  std::uint64_t context_tokens_{0};
};

}  // namespace rose::slo
