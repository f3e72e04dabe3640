// Resolves the deadlock between a parked borrower and a serving call that waits for the whole
// device.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "compute/host_gate.h"
#include "driver/device.h"

namespace rose::compute {

// Log of forced openings. Each record is written before its opening takes effect.
class ForcedLog {
 public:
  virtual ~ForcedLog() = default;
  virtual void forced(std::uint32_t passed, std::uint32_t close_epoch) noexcept = 0;
};

// Serving's work in this process: the streams for which its requests may wait.
struct ServingWork {
  driver::DevicePtr device;
  std::vector<CUstream> streams;
  // Returns 0 while no request and no step is live, else a number that changes with every token.
  std::function<std::uint64_t()> progress;
};

// Some driver calls wait for all work on the device: a free, a capture, the first launch of a
// kernel. Such a call also waits for the borrower's step, but the borrower's gate stays closed
// while serving is in the call: a deadlock. So serving declares such calls. While a call is
// declared, the watchdog watches a step that is parked between two segments. After each `after_ns`
// without progress the step may start one segment, until the step or the call ends.
//
// In one process with the borrower, serving may also make such a call without declaring it. Then
// its host is stuck and its streams run empty, unlike in a long step. So watch() adds a second
// rule: while a request is live, a parked step may start one segment after each kUndeclaredNs in
// which all of serving's streams were seen idle, no request received a token, and no segment
// started. undeclared() counts these segments.
//
// 1. Outside a declaration only the second rule forces anything: a segment that has not started
//    when the last leave() returns does not start, unless someone else opens the gate.
// 2. Each opening admits at most one segment, and fails if a close came in the meantime.
// 3. An opening is withdrawn as soon as its segment has started, an undeclared one at the latest
//    after kUndeclaredNs. The close reason is restored.
//    The watchdog leaves the gate alone if someone else closed or opened it.
// 4. An opening is forced even if its record cannot be written: serving's progress comes first, and
//    the log reports lost records.
//
// The creditor's thread calls look(). A query of serving's streams may wait for a lock of the
// driver, so no lock of ours is held meanwhile. Streams under capture are not queried, because the
// query would invalidate the capture. The lock HostGate::granting() ensures that credit from
// another thread never adds to the one forced segment. Any thread calls enter() and leave();
// declarations may overlap.
class Watchdog {
 public:
  // `log` may be null. `after_ns` is measured with `clock`.
  Watchdog(std::shared_ptr<HostGate> gate, std::shared_ptr<ForcedLog> log,
           std::shared_ptr<const Clock> clock, Nanoseconds after_ns) noexcept;

  // Time after which an undeclared wait of serving lets a segment through.
  static constexpr Nanoseconds kUndeclaredNs = 100'000'000;

  // Turns the second rule on. Call this before the creditor's thread starts.
  void watch(ServingWork work) noexcept { work_ = std::move(work); }

  // Declares a call that may wait for the whole device, until leave().
  void enter() noexcept;
  // Ends one declaration. No effect without an enter().
  void leave() noexcept;

  // Forces an opening, or withdraws one, if that is due. Returns the time until the next look.
  Nanoseconds look() noexcept;

  bool is_declared() const noexcept { return declared_.load() != 0; }
  // Segments that were let through without a declaration.
  std::uint64_t undeclared() const noexcept { return undeclared_.load(); }

 private:
  bool is_stuck() const noexcept;
  bool is_idle() const noexcept;
  void begin_standstill() noexcept;
  void force() noexcept;
  void take_back() noexcept;

  std::shared_ptr<HostGate> gate_;
  std::shared_ptr<ForcedLog> log_;
  std::shared_ptr<const Clock> clock_;
  Nanoseconds after_ns_;
  std::optional<ServingWork> work_;
  std::atomic<std::uint32_t> declared_{0};  // written under the mutex
  std::atomic<std::uint64_t> undeclared_{0};

  std::mutex mutex_;  // guards the fields below; after leave() returns, nothing is forced
  Nanoseconds still_since_ns_{0};  // start of the observed standstill
  std::uint32_t seen_passed_{0};
  std::uint64_t seen_progress_{0};
  // The current opening.
  bool is_forced_{false};
  std::uint32_t forced_epoch_{0};
  std::uint32_t forced_passed_{0};
  Nanoseconds forced_at_ns_{0};
  CloseReason closed_because_{CloseReason::kNeverOpened};
};

}  // namespace rose::compute
