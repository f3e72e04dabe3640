// What serving has to do now: its live requests, and when each of them needs its next token.
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

// What stands between serving and the borrower: a gate, seen from here.
class ServingListener {
 public:
  virtual ~ServingListener() = default;
  // A request arrived: no rollout segment may start from now on.
  virtual void busy() noexcept = 0;
  // The last request finished.
  virtual void idle() noexcept = 0;
};

// What a certificate looks at, in one moment of the log.
struct ServingLoad {
  std::uint32_t running{0};         // requests that have their first token
  std::uint64_t context_tokens{0};  // prompts and outputs of those
  Nanoseconds oldest_token_ns{0};   // when the one that waits longest got its last; 0 without any
};

// How long tokens took, of requests that have a slot.
struct TokenTimes {
  Histogram first;  // from the arrival to the first token, unless the prompt came prefilled
  Histogram later;  // from a token to the next
};

// 1. pending and waiting rise before the gate closes, and the gate closes before arrived() returns.
// 2. In the log's order a request arrives before it finishes, and wherever pending was seen as 0
//    inside the log's decision mutex, the records before that point say 0 too: an arrival counts
//    before it is recorded, an end is recorded before it counts. The same holds for waiting.
// 3. A request beyond kSlots has no slot: it waits until it finishes, so that nobody takes slack
//    that it may need.
//
// Any thread. A heartbeat is a word of the serving host; without a first one, none is fresh.
class ServingState {
 public:
  static constexpr std::uint32_t kSlots = 4096;
  static constexpr std::uint32_t kNoSlot = ~std::uint32_t{0};

  ServingState(std::shared_ptr<CertificateLog> log, std::shared_ptr<ServingListener> listener);

  // Returns the request's slot, the lowest that is free. A request whose prompt was prefilled
  // elsewhere runs at once, as if it got a token now.
  std::uint32_t arrived(std::uint64_t tokens, bool is_prefilled = false) noexcept;
  // Each of these requests got a token now; its first ends its wait. Slots of no request are
  // passed over. Returns how many were not.
  std::uint32_t emitted(std::span<const std::uint32_t> slots) noexcept;
  // False, and nothing changes, when the slot has no request: the caller counted wrong.
  bool finished(std::uint32_t slot) noexcept;
  void beat() noexcept { heartbeat_ns_.store(log_->now_ns()); }
  // A step of serving is under way, whatever becomes of its requests meanwhile: until it has ended,
  // nothing is granted as if serving were idle.
  void step_began() noexcept { steps_.fetch_add(1); }
  // False, and nothing changes, when none was under way.
  bool step_ended() noexcept;

  std::int64_t pending() const noexcept { return pending_.load(); }
  // Without a first token, or without a slot.
  std::int64_t waiting() const noexcept { return waiting_.load(); }
  bool is_in_step() const noexcept { return steps_.load() > 0; }
  // Counted since this was made; read without holding serving up.
  const TokenTimes& token_times() const noexcept { return *token_times_; }
  // Whether requests come here with their prompts prefilled: they need a token within a TPOT
  // target.
  bool has_prefilled() const noexcept { return has_prefilled_.load(); }
  // Never negative; the largest value when there never was a heartbeat.
  Nanoseconds heartbeat_age_ns(Nanoseconds now_ns) const noexcept;
  ServingLoad load() const noexcept;
  // The same for who holds the log's section, which guards it.
  ServingLoad load(const CertificateLog::Section& section) const noexcept;
  // By how many milliseconds rollouts may still delay each running request: the slowdown's share of
  // the steps since its first token, minus what they waited and were slower, and minus what was
  // promised since the last of them. 0 without one; infinite where the slowdown is.
  double budget_ms(const CertificateLog::Section& section) const noexcept;
  // Whether every running request is one of `slots`.
  bool runs_within(std::span<const std::uint32_t> slots,
                   const CertificateLog::Section& section) const noexcept;

 private:
  static constexpr Nanoseconds kNever = -1;
  static constexpr std::uint32_t kWords = kSlots / 64;

  enum class Phase : std::uint8_t { kFree, kWaiting, kRunning };
  // Running requests form a ring in the order of their last tokens, oldest first, through kSlots.
  struct Request {
    std::uint64_t context_tokens{0};
    Nanoseconds last_token_ns{0};  // while it waits, its arrival
    double balance_ms{0};          // of the log, at its first token
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
  std::unique_ptr<std::array<Request, kSlots + 1>> requests_;  // the last is the ring's anchor
  std::unique_ptr<TokenTimes> token_times_;                    // whose reading it does not guard
  std::array<std::uint64_t, kWords> taken_{};                  // a bit for each slot
  std::uint32_t running_{0};
  std::uint32_t slotless_{0};
  std::uint64_t context_tokens_{0};
};

}  // namespace rose::slo
