// Resolves the deadlock between a parked borrower and a serving call that waits for the whole
// device.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/clock.h"
#include "compute/host_gate.h"

namespace rose::compute {

// Log of forced openings. Each record is written before its opening takes effect.
class ForcedLog {
 public:
  virtual ~ForcedLog() = default;
  virtual void forced(std::uint32_t passed, std::uint32_t close_epoch) noexcept = 0;
};

// Some driver calls wait for all work on the device: a free, a capture, the first launch of a
// kernel. Such a call also waits for the borrower's step, but the borrower's gate stays closed
// while serving is in the call: a deadlock. So serving declares such calls. While a call is
// declared, the watchdog watches a step that is parked between two segments. After each `after_ns`
// without progress the step may start one segment, until the step or the call ends.
//
// 1. Outside a declaration nothing is forced: a segment that has not started when the last leave()
//    returns does not start, unless someone else opens the gate.
// 2. Each opening admits at most one segment, and fails if a close came in the meantime.
// 3. An opening is withdrawn as soon as its segment has started, and the close reason is restored.
//    The watchdog leaves the gate alone if someone else closed or opened it.
// 4. An opening is forced even if its record cannot be written: serving's progress comes first, and
//    the log reports lost records.
//
// The creditor's thread calls look(). The lock HostGate::granting() ensures that credit from
// another thread never adds to the one forced segment. Any thread calls enter() and leave();
// declarations may overlap.
class Watchdog {
 public:
  // `log` may be null. `after_ns` is measured with `clock`.
  Watchdog(std::shared_ptr<HostGate> gate, std::shared_ptr<ForcedLog> log,
           std::shared_ptr<const Clock> clock, Nanoseconds after_ns) noexcept;

  // Declares a call that may wait for the whole device, until leave().
  void enter() noexcept;
  // Ends one declaration. No effect without an enter().
  void leave() noexcept;

  // Forces an opening, or withdraws one, if that is due. Returns the time until the next look.
  Nanoseconds look() noexcept;

  bool is_declared() const noexcept { return declared_.load() != 0; }

 private:
  bool is_stuck() const noexcept;
  void force() noexcept;
  void take_back() noexcept;

  std::shared_ptr<HostGate> gate_;
  std::shared_ptr<ForcedLog> log_;
  std::shared_ptr<const Clock> clock_;
  Nanoseconds after_ns_;
  std::atomic<std::uint32_t> declared_{0};  // written under the mutex

  std::mutex mutex_;  // guards the fields below; after leave() returns, nothing is forced
  Nanoseconds still_since_ns_{0};  // start of the observed standstill
  std::uint32_t seen_passed_{0};
  // The current opening.
  bool is_forced_{false};
  std::uint32_t forced_epoch_{0};
  std::uint32_t forced_passed_{0};
  CloseReason closed_because_{CloseReason::kNeverOpened};
};

}  // namespace rose::compute
