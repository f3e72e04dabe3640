// The gate on a CPU: the borrower's own thread stops between two segments, on a futex.
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

// Why the gate is closed; kept in the gate word for whoever looks.
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
  // From a close to the end of the segment it caught. Closes that caught none are not in it.
  Quantiles pause_latency;
  std::uint64_t pauses{0};  // gates at which the borrower found `closed`, however often it looked
  std::uint64_t aborts{0};
  std::uint64_t forced_opens{0};  // by the watchdog, each for one segment
  Nanoseconds blocked_ns{0};      // time the borrower spent waiting at gates
};

// Life of a segment: begin_step, then pass (the segment runs from here), pass, ..., leave,
// end_step.
//
// 1. No segment starts after a close was visible: pass announces the segment (running), then looks
//    at `state` once more; a close writes `state`, then wait_parked looks at `running`. Both sides
//    are sequentially consistent, so at least one of them sees the other (Dekker).
// 2. At most one quantum of segments starts without a word from the creditor.
// 3. Every wait ends: at its deadline, and between two looks after kLookAgainNs at the latest.
//
// Threads: the borrower's calls come from one thread, all others from any. Nothing here takes a
// lock on the way of pass or close. Time-outs run on real time; `clock` measures.
class HostGate {
 public:
  // A lost wake-up would cost this much, and no more.
  static constexpr Nanoseconds kLookAgainNs = 20'000'000;

  // A closed gate without credit. `first_segment` is the number counting starts from.
  static Result<std::unique_ptr<HostGate>> create(std::shared_ptr<const Clock> clock,
                                                  std::uint32_t first_segment = 0);
  // The same gate from another process, which sees the same statistics.
  static Result<std::unique_ptr<HostGate>> attach(const FileDescriptor& fd,
                                                  std::shared_ptr<const Clock> clock);

  HostGate(const HostGate&) = delete;
  HostGate& operator=(const HostGate&) = delete;

  // Borrower.
  void begin_step() noexcept;
  // Ends the segment before this gate and starts the next, if that needs no waiting.
  std::optional<Verdict> try_pass() noexcept;
  // As try_pass, but waits for at most `timeout_ns`. On kAborted the request is used up; on any
  // verdict but kPassed no segment runs.
  Verdict pass(Nanoseconds timeout_ns) noexcept;
  // Ends the last segment of a step.
  void leave() noexcept;
  void end_step() noexcept;

  // For the half of a borrower whose segments run on a device (StreamGate), in place of the calls
  // between begin_step and end_step; the same thread.
  // Says that `passed` is written when a segment starts on a device, and nobody says when it ends.
  void set_on_device(bool is) noexcept { word_->on_device.store(is ? 1 : 0); }
  // Uses up a request to abort.
  bool take_abort() noexcept;
  // Lets segments up to number `last` start, whatever serving says, and no opening succeed. To be
  // called again while they start: the creditor writes `credit` too.
  void drain_to(std::uint32_t last) noexcept;
  void end_drain() noexcept;
  void record_segment(Nanoseconds duration_ns) noexcept;
  // What pass counts when it has to wait.
  void record_wait(Nanoseconds blocked_ns) noexcept;
  void count_pause() noexcept;
  // A segment of this step is in the stream.
  void mark_mid_step() noexcept { page_->mid_step.store(1); }
  // Changes whenever the borrower should look again.
  std::uint32_t bell() const noexcept { return word_->bell.load(); }
  void wait_bell(std::uint32_t seen, Nanoseconds timeout_ns) const noexcept;
  // What a device maps: the page that starts with the gate word.
  std::byte* page() const noexcept { return mapping_.data(); }

  // Serving.
  // One atomic operation; every call starts a new close epoch, also on a closed gate.
  void close(CloseReason reason) noexcept;
  // How long it took until no segment ran; nothing when one still ran at the deadline.
  std::optional<Nanoseconds> wait_parked(Nanoseconds timeout_ns) noexcept;
  // The borrower is gone: gives the gate a new page, closed, which nobody has seen. What the old
  // one holds, or its holder still writes there, is not looked at again, and whoever waits for its
  // segment goes on. Credit and `passed` go on from where they were. Not for a page that a device
  // maps. On error the gate is as before.
  Status renew();
  // True when a step is in flight: it ends at its next gate, or before if it has none left.
  bool abort_step() noexcept;

  // Creditor.
  // Held from the reading of the epoch to the opening by whoever decides: credit that one of them
  // sets must not be there for the opening of another. Serving's thread only tries.
  std::mutex& granting() noexcept { return granting_; }
  // Opens unless a close came after `expected_epoch` was read. True when the gate is open in it.
  bool open(std::uint32_t expected_epoch) noexcept;
  // Lets segments up to number `last` start. Lowers the credit only while the gate is closed, and
  // not while it drains: false, and then nothing is to be opened for it.
  bool set_credit(std::uint32_t last) noexcept;
  // Raises the credit so that at most `segments_ahead` may start from now on.
  void grant(std::uint32_t segments_ahead) noexcept;
  void set_low_water(std::uint32_t segments) noexcept;
  void count_forced_opening() noexcept;
  // Wakes the creditor: there is work, or serving has become idle.
  void ring_demand() noexcept;
  void wait_demand(std::uint32_t seen, Nanoseconds timeout_ns) const noexcept;
  std::uint32_t demand() const noexcept { return word_->demand.load(); }

  // Anyone. After shut_down every pass says kShutDown, and the gate never opens again, whatever the
  // other end writes.
  void shut_down() noexcept;
  // The same for the borrower that holds this object, and for nobody else: the word stays as it is
  // for the other end, and for the next borrower.
  void abandon() noexcept;

  bool is_open() const noexcept { return (word_->state.load() & GateWord::kOpenBit) != 0; }
  bool is_draining() const noexcept { return (word_->state.load() & GateWord::kDrainBit) != 0; }
  bool is_running() const noexcept { return word_->running.load() != GateWord::kIdle; }
  bool is_on_device() const noexcept { return word_->on_device.load() != 0; }
  // Whether the step has a segment behind it, or in the device's stream: it holds something.
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
  Nanoseconds recent_segment_ns(double share) const noexcept {
    return page_->recent.recent_quantile(share);
  }
  // Since the newest segment ended; the time since the clock's zero when there was none.
  Nanoseconds since_segment_ns() const noexcept {
    return clock_->now_ns() - page_->recent.newest_ns();
  }
  // Segment durations since the last call, oldest first; the oldest are lost beyond 24,576.
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
  GateWord* word_;  // of the page
  std::shared_ptr<const Clock> clock_;

  std::atomic<bool> is_abandoned_{false};
  std::mutex granting_;

  // The borrower's own; no other thread reads them.
  bool in_segment_{false};
  Nanoseconds started_ns_{0};
  std::optional<std::uint32_t> paused_after_;  // the last segment before the last pause

  std::mutex drain_mutex_;  // guards the reading end of the recent durations
};

}  // namespace rose::compute
