// The gate on a CPU: the borrower's thread waits on a futex between two segments.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/memfd.h"
#include "base/status.h"
#include "compute/gate_page.h"

namespace rose::compute {

enum class Verdict : std::uint8_t { kPassed, kAborted, kTimedOut, kShutDown };

// Reason of the last close, kept in the gate word.
enum class CloseReason : std::uint32_t {
  kNeverOpened = 0,
  kArrival = 1,
  kRevocation = 2,
  kGaveBack = 3,
  kShutDown = 4,
  kBorrowerGone = 5,
  kStep = 6,  // serving's step begins
};

struct GateStats {
  Quantiles segments;
  // Time from a close to the end of the segment that ran at the close. A close while no segment
  // runs does not count.
  Quantiles pause_latency;
  std::uint64_t pauses{0};  // gates that the borrower found closed, each counted once
  std::uint64_t aborts{0};
  std::uint64_t forced_opens{0};  // by the watchdog, each for one segment
  Nanoseconds blocked_ns{0};      // time the borrower spent waiting at gates
};

// Order of the borrower's calls in a step: begin_step, pass (the first segment runs from here),
// pass, ..., leave, end_step.
//
// 1. No segment starts after a close was visible: pass announces the segment (running), then reads
//    `state` again; a close writes `state`, then wait_parked reads `running`. Both sides are
//    sequentially consistent, so at least one of them sees the other (Dekker).
// 2. At most one quantum of segments starts without a new grant.
// 3. Every wait ends at its deadline. Until then, the waiting thread checks the gate at least every
//    kLookAgainNs.
//
// Threads: one thread for the borrower's calls, any thread for all others. pass and close take no
// lock. Time-outs use real time; `clock` is used for measurements.
class HostGate {
 public:
  // Maximum delay after a lost wake-up.
  static constexpr Nanoseconds kLookAgainNs = 20'000'000;
  static constexpr Nanoseconds kExpectMaxNs = 1'000'000'000;

  // Makes a closed gate without credit. The count of started segments begins at `first_segment`.
  static Result<std::unique_ptr<HostGate>> create(std::shared_ptr<const Clock> clock,
                                                  std::uint32_t first_segment = 0);
  // Attaches to the gate of another process; both share the statistics.
  static Result<std::unique_ptr<HostGate>> attach(const FileDescriptor& fd,
                                                  std::shared_ptr<const Clock> clock);

  HostGate(const HostGate&) = delete;
  HostGate& operator=(const HostGate&) = delete;

  // Borrower.
  void begin_step() noexcept;
  // Ends the segment before this gate, and starts the next segment if no wait is necessary. Returns
  // nothing if the borrower must wait.
  std::optional<Verdict> try_pass() noexcept;
  // Like try_pass, but waits for at most `timeout_ns`. kAborted consumes the abort request. After
  // any verdict but kPassed no segment runs.
  Verdict pass(Nanoseconds timeout_ns) noexcept;
  // Ends the last segment of a step.
  void leave() noexcept;
  void end_step() noexcept;

  // The calls below are for a borrower with segments on a device (StreamGate). They replace the
  // calls between begin_step and end_step, in the same thread.
  // With true, the device writes `passed` when a segment starts, and nobody records its end.
  void set_on_device(bool is) noexcept { word_->on_device.store(is ? 1 : 0); }
  // Consumes an abort request; true if there was one.
  bool take_abort() noexcept;
  // Lets segments up to number `last` start, even while closed, and makes every opening fail. Call
  // it repeatedly until they have started, because the creditor may overwrite `credit`.
  void drain_to(std::uint32_t last) noexcept;
  void end_drain() noexcept;
  void record_segment(Nanoseconds duration_ns) noexcept;
  // Adds a wait to the statistics, as pass does.
  void record_wait(Nanoseconds blocked_ns) noexcept;
  void count_pause() noexcept;
  // Records that a segment of this step is in the stream.
  void mark_mid_step() noexcept { page_->mid_step.store(1); }
  // Changes whenever the borrower should look again.
  std::uint32_t bell() const noexcept { return word_->bell.load(); }
  void wait_bell(std::uint32_t seen, Nanoseconds timeout_ns) const noexcept;
  // The page that a device maps; it starts with the gate word.
  std::byte* page() const noexcept { return mapping_.data(); }

  // Serving.
  // Closes the gate with one atomic operation. Every call starts a new close epoch, even on a
  // closed gate.
  void close(CloseReason reason) noexcept;
  // Closes the gate for a request that should reach serving's engine within `within_ns`, at most
  // kExpectMaxNs. Until then, or until arrived(), expects_arrival() is true, and the policies grant
  // nothing. For the process that receives serving's requests, which may be another process.
  void expect_arrival(Nanoseconds within_ns) noexcept;
  bool expects_arrival() const noexcept;
  // A request has reached the engine, which has closed the gate for it. No request is expected any
  // more; another one that is still on its way closes the gate when it arrives.
  void arrived() noexcept { page_->expected_until_ns.store(0); }
  // Returns the time until no segment ran; nothing if a segment still ran at the deadline.
  std::optional<Nanoseconds> wait_parked(Nanoseconds timeout_ns) noexcept;
  // Gives the gate a new, closed page after the borrower is gone. The old page, and all later
  // writes to it, are ignored, and wait_parked stops waiting for the borrower's segment. `passed`
  // keeps its value, and no credit is left. Not for a page that a device maps. On error no new page
  // is used.
  Status renew();
  // Asks the running step to end at its next gate; a step without a further gate runs to its end.
  // True if a step is running.
  bool abort_step() noexcept;

  // Creditor.
  // The lock for decisions. Hold it from reading the epoch to the opening, so that an opening never
  // uses credit that another thread's decision set. Serving's thread only tries to lock it.
  std::mutex& granting() noexcept { return granting_; }
  // Opens the gate unless a close came after `expected_epoch` was read. True if the gate is open in
  // that epoch.
  bool open(std::uint32_t expected_epoch) noexcept;
  // Lets segments up to number `last` start. Lowers the credit only while the gate is closed and
  // not draining. False if a drain prevented it: then do not open the gate.
  bool set_credit(std::uint32_t last) noexcept;
  // Raises the credit so that at most `segments_ahead` may start from now on.
  void grant(std::uint32_t segments_ahead) noexcept;
  void set_low_water(std::uint32_t segments) noexcept;
  void count_forced_opening() noexcept;
  // Wakes the creditor: the borrower has work, or serving became idle.
  void ring_demand() noexcept;
  void wait_demand(std::uint32_t seen, Nanoseconds timeout_ns) const noexcept;
  std::uint32_t demand() const noexcept { return word_->demand.load(); }

  // Any thread. After shut_down every pass returns kShutDown, and the gate never opens again,
  // whatever other processes write to the page.
  void shut_down() noexcept;
  // Shuts down only this object. The gate word is unchanged: serving and the next borrower can use
  // it.
  void abandon() noexcept;

  bool is_open() const noexcept { return (word_->state.load() & GateWord::kOpenBit) != 0; }
  bool is_draining() const noexcept { return (word_->state.load() & GateWord::kDrainBit) != 0; }
  bool is_running() const noexcept { return word_->running.load() != GateWord::kIdle; }
  bool is_on_device() const noexcept { return word_->on_device.load() != 0; }
  // True if the step has started a segment, or enqueued one on a device, so it holds resources.
  bool is_mid_step() const noexcept { return page_->mid_step.load() != 0; }
  bool is_in_step() const noexcept { return word_->step.load() != GateWord::kNoStep; }
  bool wants_credit() const noexcept { return credit_left() <= word_->low_water.load(); }
  bool is_abort_asked() const noexcept { return word_->step.load() == GateWord::kAbortAsked; }
  bool is_shut_down() const noexcept {
    return is_abandoned_.load() || word_->shut_down.load() != 0;
  }
  std::uint32_t close_epoch() const noexcept {
    return static_cast<std::uint32_t>(word_->state.load() >> GateWord::kEpochShift);
  }
  CloseReason close_reason() const noexcept {
    return static_cast<CloseReason>(word_->close_reason.load());
  }
  std::uint32_t passed() const noexcept { return word_->passed.load(); }
  std::uint32_t overdue() const noexcept { return word_->overdue.load(); }
  // Segments that may still start, across the wrap of both counters.
  std::uint32_t credit_left() const noexcept {
    const auto left = static_cast<std::int32_t>(word_->credit.load() - passed());
    return left > 0 ? static_cast<std::uint32_t>(left) : 0;
  }

  GateStats stats() const noexcept;
  Nanoseconds recent_segment_ns(double share, Nanoseconds since_ns = 0) const noexcept {
    return page_->recent.recent_quantile(share, since_ns);
  }
  // Time since the newest segment ended; since the clock's zero if no segment has ended.
  Nanoseconds since_segment_ns() const noexcept {
    return clock_->now_ns() - page_->recent.newest_ns();
  }
  // Segment durations since the last call, oldest first; only the last 24,576 are kept.
  std::vector<Nanoseconds> drain_segments();

  const FileDescriptor& fd() const noexcept { return fd_; }

 private:
  HostGate(FileDescriptor fd, Mapping mapping, std::shared_ptr<const Clock> clock) noexcept;

  bool may_start() const noexcept;
  bool start_segment() noexcept;
  void end_segment() noexcept;
  void record_segment_ended(Nanoseconds duration_ns, Nanoseconds ended_ns) noexcept;
  std::optional<Verdict> look() noexcept;
  void ring_bell() noexcept;

  FileDescriptor fd_;
  Mapping mapping_;
  GatePage* page_;
  GateWord* word_;  // in *page_
  std::shared_ptr<const Clock> clock_;

  std::atomic<bool> is_abandoned_{false};
  std::mutex granting_;

  // Used only by the borrower's thread.
  bool in_segment_{false};
  Nanoseconds started_ns_{0};
  std::optional<std::uint32_t> paused_after_;  // `passed` at the last counted pause

  std::mutex drain_mutex_;  // guards draining of the recent durations
};

}  // namespace rose::compute
