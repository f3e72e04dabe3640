// The gate of one rank of a tensor-parallel borrower: credit only, the same on all ranks.
#pragma once

#include <memory>
#include <optional>

#include <sys/types.h>

#include "base/clock.h"
#include "base/process.h"
#include "compute/host_gate.h"
#include "compute/rank_page.h"

namespace rose::compute {

// The borrower's half, with the calls of a HostGate and their meaning, but for this: ranks run
// collectives inside their segments, so a segment that one rank has started must be started by all,
// or they hold their devices and wait for ever. No rank looks at its own serving's gate.
//
// 1. The same segments start on all ranks, numbered by the steps and segments that each rank counts
//    for itself: all ranks make the same calls in the same order. Every step takes a number.
// 2. kAborted and kShutDown are told behind the last credited segment, the same one on all ranks,
//    and for good: kAborted until the step is ended, kShutDown for ever.
// 3. Without the leader nothing is credited. When its process is gone, whoever waits at a gate
// shuts
//    the group down, so nobody is parked for ever; while it is stopped, passes time out.
//
// Threads: one, the rank's. shut_down() from any.
class RankGate {
 public:
  // InvalidArgument when `rank` is none of the group's, or is taken; Unavailable when the leader or
  // the group has ended. A rank is taken once in the life of a group.
  static Result<std::unique_ptr<RankGate>> attach(const FileDescriptor& fd, std::uint32_t rank,
                                                  std::shared_ptr<const Clock> clock) noexcept;
  // Ends its segment and step and shuts the group down: it cannot go on with a rank less.
  ~RankGate();
  RankGate(const RankGate&) = delete;
  RankGate& operator=(const RankGate&) = delete;

  void begin_step() noexcept;
  // kAborted outside a step, and behind a step's 65,535th segment.
  std::optional<Verdict> try_pass() noexcept;
  Verdict pass(Nanoseconds timeout_ns) noexcept;
  void leave() noexcept;
  void end_step() noexcept;
  void shut_down() noexcept { page_->shut_down(GroupEnd::kAsked); }

  std::uint32_t rank() const noexcept { return rank_; }
  SegmentNumber passed() const noexcept { return at_; }
  const RankPage& page() const noexcept { return *page_; }

 private:
  RankGate(std::shared_ptr<RankPage> page, std::uint32_t rank, Process leader,
           std::shared_ptr<const Clock> clock) noexcept;

  std::optional<Verdict> look() noexcept;
  std::optional<Verdict> look_behind_credit(std::uint64_t grant, std::uint32_t next) noexcept;
  bool start_segment(std::uint32_t number) noexcept;
  void end_segment() noexcept;

  std::shared_ptr<RankPage> page_;
  RankWord* word_;  // of the page
  std::uint32_t rank_;
  Process leader_;
  std::shared_ptr<const Clock> clock_;
  pid_t owner_;

  SegmentNumber at_;
  bool in_step_{false};
  bool in_segment_{false};
  Nanoseconds started_ns_{0};
};

}  // namespace rose::compute
