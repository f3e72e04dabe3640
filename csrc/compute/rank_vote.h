// What the serving side of one rank says to a group: how much its device bears, and when nothing.
#pragma once

#include <memory>
#include <optional>

#include "base/clock.h"
#include "compute/rank_page.h"

namespace rose::compute {

// Serving's half of a rank, as the creditor's and serving's calls of a HostGate are for one gate.
// Nothing is granted unless the votes of all ranks agree, and never beyond the lowest.
//
// 1. When close() has returned, no grant that was decided before it can follow. What was credited
//    runs out: at most one quantum, and wait_parked waits for it.
// 2. A vote names the close epoch it was decided in, and counts in the step it was made for: a
// close
//    that came in between wins.
//
// Threads: any.
class RankVote {
 public:
  // InvalidArgument when the group has no such rank.
  static Result<std::unique_ptr<RankVote>> attach(const FileDescriptor& fd,
                                                  std::uint32_t rank) noexcept;

  // Bears `segments` more from now on, those outstanding included; replaces the vote before. False
  // when a close came after `expected_epoch` was read.
  bool agree(std::uint32_t segments, std::uint32_t expected_epoch) noexcept;
  void close() noexcept;
  // How long it took until this rank ran no segment and could start none; nothing at the deadline.
  std::optional<Nanoseconds> wait_parked(Nanoseconds timeout_ns) noexcept;
  // The step in flight ends at its credit on every rank; False when there is none.
  bool abort_step() noexcept { return page_->abort_step(); }

  // What a thread that votes waits on: begin_step, a rank at half its credit, a rank that waits.
  std::uint32_t demand() const noexcept { return page_->word().demand.load(); }
  void wait_demand(std::uint32_t seen, Nanoseconds timeout_ns) const noexcept;

  bool agrees() const noexcept { return (word_->vote.load() & RankWord::kAgreesBit) != 0; }
  std::uint32_t close_epoch() const noexcept {
    return static_cast<std::uint32_t>(word_->vote.load() >> kEpochShift);
  }
  // Segments that the vote bears beyond what has started; 0 when it does not agree.
  std::uint32_t vote_left() const noexcept;
  bool is_parked() const noexcept;
  bool is_in_step() const noexcept { return page_->is_in_step(rank_); }
  bool is_shut_down() const noexcept { return page_->is_shut_down(); }
  SegmentNumber passed() const noexcept { return page_->passed(rank_); }
  std::uint32_t credit_left() const noexcept { return page_->credit_left(rank_); }
  Nanoseconds recent_segment_ns(double share) const noexcept {
    return page_->line(rank_).recent.recent_quantile(share);
  }

 private:
  static constexpr unsigned kEpochShift = 33;

  RankVote(std::shared_ptr<RankPage> page, std::uint32_t rank) noexcept
      : page_{std::move(page)}, rank_{rank}, word_{&page_->line(rank).word} {}

  std::shared_ptr<RankPage> page_;
  std::uint32_t rank_;
  RankWord* word_;  // of the page
};

}  // namespace rose::compute
