// The leader of a tensor-parallel borrower: it numbers the credit that all ranks share.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include <sys/types.h>

#include "base/clock.h"
#include "base/process.h"
#include "compute/rank_page.h"

namespace rose::compute {

enum class GroupAnswer : std::uint8_t {
  kGranted,
  kEnough,     // the votes allow no more than has been credited
  kNoStep,     // a rank is not here, or not in a step
  kNoVote,     // a rank's serving is busy, or has not agreed yet
  kAborted,    // the step in flight is being aborted
  kOvertaken,  // a close, an abort or another grant came in between
  kShutDown,
};

// The group's word as it was seen, and as it is to be.
struct PlannedGrant {
  std::uint64_t seen{0};
  std::uint64_t granted{0};
};

// Life of a group: create, ranks and votes attach to fd(), then grants, until shut_down or its end.
//
// 1. Credit is extended to the slowest rank's last segment + a quantum, and never beyond what every
//    rank's serving bears; when one of them is busy it is not extended at all.
// 2. A rank whose process dies, or that leaves, ends the group. Segments that the dead rank had
//    started are still started by the others, which may be in them; none after those.
//
// Threads: any.
class RankGroup {
 public:
  // `quantum`: segments, 1 to 65535. `before_step`: steps are numbered from the next one on.
  static Result<std::shared_ptr<RankGroup>> create(std::uint32_t ranks, std::uint32_t quantum,
                                                   std::uint64_t before_step = 0) noexcept;
  // Shuts the group down.
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  const FileDescriptor& fd() const noexcept { return page_->fd(); }

  // Lets the slowest rank start up to min(segments, quantum) more: plan, then commit.
  GroupAnswer grant(std::uint32_t segments) noexcept;
  // Looks at everybody and changes nothing; kGranted says that `grant` may be committed.
  GroupAnswer plan(std::uint32_t segments, PlannedGrant& grant) const noexcept;
  // kOvertaken when something came in between that the plan does not know of.
  GroupAnswer commit(const PlannedGrant& grant) noexcept;
  // Looks whether every rank that came is alive, and ends the group when one is not.
  void watch() noexcept;
  // What the leader's thread does once: watch, then a quantum.
  GroupAnswer look() noexcept;
  bool abort_step() noexcept { return page_->abort_step(); }
  void shut_down() noexcept { page_->shut_down(GroupEnd::kAsked); }

  std::uint32_t ranks() const noexcept { return page_->ranks(); }
  std::uint32_t quantum() const noexcept { return page_->word().quantum; }
  bool is_shut_down() const noexcept { return page_->is_shut_down(); }
  GroupEnd end() const noexcept { return page_->end(); }
  SegmentNumber slowest() const noexcept;
  SegmentNumber fastest() const noexcept;
  // The number that ranks compare with, and a device does.
  std::uint32_t credit() const noexcept {
    return static_cast<std::uint32_t>(page_->word().grant.load());
  }
  std::uint64_t grants() const noexcept { return grants_.load(); }
  RankPage& page() const noexcept { return *page_; }

 private:
  explicit RankGroup(std::shared_ptr<RankPage> page) noexcept;

  void bury(std::uint32_t rank) noexcept;

  std::shared_ptr<RankPage> page_;
  pid_t owner_;
  std::atomic<std::uint64_t> grants_{0};
  std::mutex watch_mutex_;  // guards processes_
  std::array<std::optional<Process>, RankPage::kMostRanks> processes_;
};

// The thread that grants. start() and stop() by the owner; stop() joins, and so does the
// destructor.
class RankLeader {
 public:
  // `poll_ns`: the longest sleep between two looks, and so how late a death is seen.
  RankLeader(std::shared_ptr<RankGroup> group, Nanoseconds poll_ns) noexcept
      : group_{std::move(group)}, poll_ns_{poll_ns} {}
  ~RankLeader() { stop(); }
  RankLeader(const RankLeader&) = delete;
  RankLeader& operator=(const RankLeader&) = delete;

  // Fails when it runs already or the machine has no thread left.
  Status start() noexcept;
  // What was credited runs out; the group goes on when another leader starts.
  void stop() noexcept;
  bool is_running() const noexcept { return thread_.joinable(); }

 private:
  void run() noexcept;

  std::shared_ptr<RankGroup> group_;
  Nanoseconds poll_ns_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace rose::compute
