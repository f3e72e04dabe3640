// Serving lets rollouts run first, between two of its steps, within the limit of a certificate.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "compute/creditor.h"
#include "compute/host_gate.h"

namespace rose::compute {

struct Offer {
  std::uint32_t segments{0};
  std::uint32_t passed{0};       // segments started before the offer
  std::uint32_t close_epoch{0};  // close epoch in which the gate was opened
  Nanoseconds until_ns{0};       // end of the offer on the clock, used or not
};

struct SlackConfig {
  std::uint32_t max_segments{8};
  // A borrower that starts no segment within this time after an offer counts as having no work.
  Nanoseconds start_ns{1'000'000};
  bool has_credit{true};  // false: only the open bit limits rollouts (for comparisons)
};

// 1. An offer is made only while the gate is closed and no segment runs, so the borrower runs at
//    most its quantum until the next decision. On a device the previous segment may still run
//    unseen, so the quantum is one segment smaller there.
// 2. lend() closes the gate after each of its own openings before it returns. lend() waits no
//    longer than the sum of the policy's quanta. If a segment still runs when lend() returns, the
//    caller waits for it.
// 3. Any other close, such as an arrival's, ends the offer at once.
//
// Only serving's thread uses it, between two steps; these calls wait for no lock. Any thread may
// call set_stopped().
class SlackLender {
 public:
  SlackLender(std::shared_ptr<HostGate> gate, std::shared_ptr<CreditPolicy> policy,
              std::shared_ptr<const Clock> clock, SlackConfig config) noexcept
      : gate_{std::move(gate)},
        policy_{std::move(policy)},
        clock_{std::move(clock)},
        config_{config} {}

  // Asks the policy, and opens the gate for the granted segments. Returns nothing if the borrower
  // has no work, the policy refused, or a close came in between.
  std::optional<Offer> offer() noexcept;
  // Closes the gate, if it is open.
  void withdraw() noexcept;
  // Offers, waits until the offer is used up, and repeats while the policy grants segments. Returns
  // the time it took; 0 if nothing was granted.
  Nanoseconds lend() noexcept;
  // Disables or enables offers. A running lend() ends with its current quantum.
  void set_stopped(bool is) noexcept;

 private:
  // True if the whole quantum ran and no segment runs any more.
  bool wait_spent(const Offer& offer) noexcept;

  std::shared_ptr<HostGate> gate_;
  std::shared_ptr<CreditPolicy> policy_;
  std::shared_ptr<const Clock> clock_;
  SlackConfig config_;
  bool is_stopped_{false};  // guarded by the gate's granting()
};

}  // namespace rose::compute
