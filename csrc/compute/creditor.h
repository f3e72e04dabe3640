// The thread that grants quanta to rollouts: it asks a policy for each quantum and opens the gate.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "base/owned_thread.h"
#include "base/status.h"
#include "compute/host_gate.h"
#include "compute/watchdog.h"

namespace rose::compute {

// Values that the creditor reads from the gate and the clock for one decision.
struct CreditRequest {
  Nanoseconds now_ns{0};
  std::uint32_t close_epoch{0};
  std::uint32_t passed{0};       // segments started so far
  std::uint32_t outstanding{0};  // segments already granted; 0 when the gate is closed
};

// A policy's answer: `segments` more segments may start after segment number `passed`. The
// outstanding segments are included in `segments`; 0 is a refusal.
struct CreditDecision {
  std::uint32_t segments{0};
  Nanoseconds retry_after_ns{0};
  Nanoseconds until_ns{0};  // end of the quantum, on the creditor's clock
};

// More segments than a borrower starts before the gate closes, but less than 2^31: the difference
// between two counters is read as a signed number.
inline constexpr std::uint32_t kUnlimitedCredit = 1U << 30;

// Decides whether serving can tolerate another quantum. The caller holds HostGate::granting(), so
// one thread calls at a time. The caller does not hold the GIL, so implementations are C++.
class CreditPolicy {
 public:
  virtual ~CreditPolicy() = default;
  virtual CreditDecision decide(const CreditRequest& request) noexcept = 0;
};

struct CreditorConfig {
  std::uint32_t max_segments{8};   // the quantum: maximum credit
  Nanoseconds poll_ns{5'000'000};  // maximum sleep between two calls of look()
  bool has_credit{true};           // false: only the open bit limits rollouts (for comparisons)

  // Credit at which the borrower wakes the creditor. This credit lasts until the creditor is awake,
  // so the borrower does not wait. A higher value would cause more wake-ups, and each wake-up costs
  // about 50 us at a gate.
  std::uint32_t low_water() const noexcept { return max_segments / 4; }
};

// 1. The credit is at most max_segments ahead of the started segments, whatever the policy decides;
//    without CreditorConfig::has_credit, this limit does not apply.
// 2. A refusal grants nothing; the outstanding segments end within one quantum.
// 3. The gate opens only if no close came since the decision began: look() reads the close epoch
//    before the policy reads anything. An arrival first becomes visible to the policy, then closes
//    the gate. So if the policy did not see the arrival, the gate is closed after look() has read
//    the epoch: this close makes the opening fail, or it comes after the opening and ends it.
//
// One thread at a time calls start(); any thread calls stop() and notify(). stop() and the
// destructor join, and have no effect in a forked child.
class Creditor {
 public:
  Creditor(std::shared_ptr<HostGate> gate, std::shared_ptr<CreditPolicy> policy,
           std::shared_ptr<const Clock> clock, CreditorConfig config,
           std::shared_ptr<Watchdog> watchdog = nullptr) noexcept;
  ~Creditor();
  Creditor(const Creditor&) = delete;
  Creditor& operator=(const Creditor&) = delete;

  // Fails if the thread already runs or cannot be created.
  Status start() noexcept;
  void stop() noexcept;
  // Makes the thread call look() at once, for example because serving became idle.
  void notify() noexcept;
  bool is_running() const noexcept { return thread_.is_running(); }

  // Asks the policy once, if the borrower needs credit. Returns the time to sleep. The creditor's
  // thread calls this; tests call it without a thread.
  Nanoseconds look() noexcept;

  std::uint64_t grants() const noexcept { return grants_.load(); }
  std::uint64_t refusals() const noexcept { return refusals_.load(); }
  // Grants that failed, because a close or a drain came before the opening.
  std::uint64_t overtaken() const noexcept { return overtaken_.load(); }

 private:
  void run() noexcept;

  std::shared_ptr<HostGate> gate_;
  std::shared_ptr<CreditPolicy> policy_;
  std::shared_ptr<const Clock> clock_;
  CreditorConfig config_;
  std::shared_ptr<Watchdog> watchdog_;  // polled by the same thread; may be null
  std::atomic<bool> stopping_{false};
  std::atomic<std::uint64_t> grants_{0};
  std::atomic<std::uint64_t> refusals_{0};
  std::atomic<std::uint64_t> overtaken_{0};
  const Owner owner_;
  OwnedThread thread_;  // last, because it uses all of the above
};

}  // namespace rose::compute
