// Frees a serving call that waits for the whole device while the borrower is parked on it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/clock.h"
#include "compute/host_gate.h"

namespace rose::compute {

// Where a forced opening is written down, before it happens.
class ForcedRecord {
 public:
  virtual ~ForcedRecord() = default;
  virtual void forced(std::uint32_t passed, std::uint32_t close_epoch) noexcept = 0;
};

// Some calls of a driver wait for everything on the device: a free, a capture, the first launch of
// a kernel. The borrower's step is on the device too, and its gate is closed because serving is
// busy, in that call: each waits for the other. So serving declares such calls. While one is
// declared, a step that is parked within itself and has not moved for `after_ns` may start one
// segment, and one more each time that this passes again, until the step or the call has ended.
//
// 1. Outside a declaration nothing is let through: what has not started when the last leave()
//    returns does not start, unless somebody else opens.
// 2. At most one segment for each opening, in the close epoch that was looked at: a close wins.
// 3. An opening is taken back as soon as its segment has started, and the gate then says what it
//    said before. One that somebody else closed, or opened, is left to them.
// 4. A record that is lost stops nothing: serving's progress comes before the books, and a log
//    that lost a record says so itself.
//
// look() is called by the creditor's thread; credit of an opening that is under way elsewhere never
// adds to its one segment (HostGate::granting). enter() and leave() by any thread; declarations may
// overlap.
class Watchdog {
 public:
  // `record` may be null. `after_ns` counts on `clock`.
  Watchdog(std::shared_ptr<HostGate> gate, std::shared_ptr<ForcedRecord> record,
           std::shared_ptr<const Clock> clock, Nanoseconds after_ns) noexcept;

  // Serving is inside a call that may wait for the whole device, from here to leave().
  void enter() noexcept;
  // One without an enter() changes nothing.
  void leave() noexcept;

  // Returns how long nothing is to be done.
  Nanoseconds look() noexcept;

  bool is_declared() const noexcept { return declared_.load() != 0; }

 private:
  bool is_stuck() const noexcept;
  void force() noexcept;
  void take_back() noexcept;

  std::shared_ptr<HostGate> gate_;
  std::shared_ptr<ForcedRecord> record_;
  std::shared_ptr<const Clock> clock_;
  Nanoseconds after_ns_;
  std::atomic<std::uint32_t> declared_{0};  // written under the mutex

  std::mutex mutex_;  // guards all below, and that nothing is forced once leave() has returned
  Nanoseconds still_since_ns_{0};  // since when nothing has moved, as far as was seen
  std::uint32_t seen_passed_{0};
  // The opening that is under way.
  bool is_forced_{false};
  std::uint32_t forced_epoch_{0};
  std::uint32_t forced_passed_{0};
  CloseReason closed_because_{CloseReason::kNeverOpened};
};

}  // namespace rose::compute
