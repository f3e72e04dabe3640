// The thread that lets rollouts run: it asks a policy for each quantum and opens the gate for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "base/clock.h"
#include "base/status.h"
#include "compute/host_gate.h"
#include "compute/watchdog.h"

namespace rose::compute {

// What the creditor saw, in this order: the state of the gate, then the counters.
struct CreditRequest {
  Nanoseconds now_ns{0};
  std::uint32_t close_epoch{0};
  std::uint32_t passed{0};       // segments that started so far
  std::uint32_t outstanding{0};  // may start already; 0 when the gate is closed
};

// `segments` may start from `passed` on, those outstanding included; 0 is a refusal.
struct Decision {
  std::uint32_t segments{0};
  Nanoseconds retry_after_ns{0};
  Nanoseconds until_ns{0};  // when the quantum is over, on the creditor's clock
};

// More than a borrower starts before the gate closes, less than half of the numbers there are.
inline constexpr std::uint32_t kUnlimitedCredit = 1U << 30;

// Says whether serving can bear another quantum. Called by the creditor's thread, which holds no
// lock of Python's: implementations are C++.
class CreditPolicy {
 public:
  virtual ~CreditPolicy() = default;
  virtual Decision decide(const CreditRequest& request) noexcept = 0;
};

struct CreditorConfig {
  std::uint32_t max_segments{8};   // the quantum: never more credit than this
  Nanoseconds poll_ns{5'000'000};  // the longest sleep between two looks
  bool has_credit{true};           // false: the open bit alone, to see what the credit is worth
};

// 1. Never more than max_segments ahead of what the borrower has started, whatever the policy says.
// 2. A refusal gives nothing: what is outstanding runs out within one quantum.
// 3. The gate opens only in the close epoch the policy decided in. The epoch is read first; an
//    arrival raises `pending`, then closes. If the policy saw pending == 0, the close is still to
//    come: it comes before the opening, which then fails, or after, and closes what was opened.
//
// start() and stop() by the owner; notify() by anyone. stop() joins, and so does the destructor.
class Creditor {
 public:
  Creditor(std::shared_ptr<HostGate> gate, std::shared_ptr<CreditPolicy> policy,
           std::shared_ptr<const Clock> clock, CreditorConfig config,
           std::shared_ptr<Watchdog> watchdog = nullptr) noexcept;
  ~Creditor();
  Creditor(const Creditor&) = delete;
  Creditor& operator=(const Creditor&) = delete;

  // Fails when it runs already or the machine has no thread left.
  Status start() noexcept;
  void stop() noexcept;
  // Serving became idle: look now.
  void notify() noexcept;
  bool is_running() const noexcept { return thread_.joinable(); }

  // One look: asks the policy if the borrower needs credit. Returns how long to sleep. Called by
  // the thread; by tests without one.
  Nanoseconds look() noexcept;

  std::uint64_t grants() const noexcept { return grants_.load(); }
  std::uint64_t refusals() const noexcept { return refusals_.load(); }
  // Openings that lost to a close.
  std::uint64_t overtaken() const noexcept { return overtaken_.load(); }

 private:
  void run() noexcept;

  std::shared_ptr<HostGate> gate_;
  std::shared_ptr<CreditPolicy> policy_;
  std::shared_ptr<const Clock> clock_;
  CreditorConfig config_;
  std::shared_ptr<Watchdog> watchdog_;  // looks in the same thread; null: none does
  std::atomic<bool> stopping_{false};
  std::atomic<std::uint64_t> grants_{0};
  std::atomic<std::uint64_t> refusals_{0};
  std::atomic<std::uint64_t> overtaken_{0};
  std::thread thread_;
};

}  // namespace rose::compute
