// Serving lets rollouts go first: between two of its steps, for no longer than a certificate says.
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
  std::uint32_t passed{0};       // segments that had started before it
  std::uint32_t close_epoch{0};  // in which the gate was opened for it
  Nanoseconds until_ns{0};       // on the clock; then it is over, whatever became of it
};

struct SlackConfig {
  std::uint32_t max_segments{8};
  // A borrower that starts nothing for so long after an offer has nothing to run.
  Nanoseconds start_ns{1'000'000};
  bool has_credit{true};  // false: the open bit alone, to see what the credit is worth
};

// 1. An offer is made only while the gate is closed and no segment runs, so its quantum is all the
//    borrower can do until the next decision. On a device the last segment before it may still run,
//    and nobody sees it end: it counts as one of the quantum.
// 2. lend() returns with the gate closed. It never waits longer than the policy's quanta, one after
//    the other; a segment that is still running then is for the caller to wait for.
// 3. A close by anybody else, an arrival's above all, ends it at once.
//
// One thread at a time, serving's, between two of its steps. It takes no lock.
class SlackLender {
 public:
  SlackLender(std::shared_ptr<HostGate> gate, std::shared_ptr<CreditPolicy> policy,
              std::shared_ptr<const Clock> clock, SlackConfig config) noexcept
      : gate_{std::move(gate)},
        policy_{std::move(policy)},
        clock_{std::move(clock)},
        config_{config} {}

  // Asks the policy, and opens the gate for what it grants. Nothing when nobody would run, or the
  // policy refused, or a close came in between.
  std::optional<Offer> offer() noexcept;
  // Closes the gate, if it is open.
  void withdraw() noexcept;
  // Offers, waits until that is used up, and offers again, as long as the policy grants something.
  // Returns how long that took; 0 when nothing was granted.
  Nanoseconds lend() noexcept;
  // From now on there is no offer, or there are some again. Any thread; a lend() that is under way
  // ends with its quantum.
  void set_stopped(bool is) noexcept;

 private:
  // True when the whole quantum ran, and nothing runs any more.
  bool wait_spent(const Offer& offer) noexcept;

  std::shared_ptr<HostGate> gate_;
  std::shared_ptr<CreditPolicy> policy_;
  std::shared_ptr<const Clock> clock_;
  SlackConfig config_;
  bool is_stopped_{false};  // guarded by the gate's granting()
};

}  // namespace rose::compute
