#include "compute/rank_gate.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/futex.h"

namespace rose::compute {

RankGate::RankGate(std::shared_ptr<RankPage> page, std::uint32_t rank, Process leader,
                   std::shared_ptr<const Clock> clock) noexcept
    : page_{std::move(page)},
      word_{&page_->line(rank).word},
      rank_{rank},
      leader_{std::move(leader)},
      clock_{std::move(clock)},
      owner_{::getpid()},
      at_{page_->passed(rank)} {}

Result<std::unique_ptr<RankGate>> RankGate::attach(const FileDescriptor& fd, std::uint32_t rank,
                                                   std::shared_ptr<const Clock> clock) noexcept {
  auto page = RankPage::attach(fd);
  if (!page.ok()) return page.status();
  const std::uint32_t ranks = page.value()->ranks();
  if (rank >= ranks) {
    return Status::invalid_argument("there is no rank " + std::to_string(rank) + " in a group of " +
                                    std::to_string(ranks));
  }
  if (page.value()->is_shut_down()) return Status::unavailable("the rank group has ended");
  auto leader = open_process(page.value()->word().leader);
  if (!leader.ok()) return leader.status();
  const Result<ProcessMark> mark = own_mark();
  if (!mark.ok()) return mark.status();
  RankWord& word = page.value()->line(rank).word;
  std::uint32_t absent = RankWord::kAbsent;
  if (!word.present.compare_exchange_strong(absent, RankWord::kAttaching)) {
    return Status::invalid_argument("rank " + std::to_string(rank) + " of the group is taken");
  }
  word.process = mark.value();
  word.present.store(RankWord::kHere);
  return std::unique_ptr<RankGate>{
      new RankGate{page.take(), rank, leader.take(), std::move(clock)}};
}

RankGate::~RankGate() {
  // A child that was forked has a copy of this object, and no part in the group.
  if (owner_ != ::getpid()) return;
  page_->lose(rank_, GroupEnd::kRankLeft);
  end_step();
  word_->present.store(RankWord::kGone);
}

void RankGate::begin_step() noexcept {
  end_step();
  at_ = {at_.step + 1, 0};
  in_step_ = true;
  // In this order: the leader leaves out a rank whose two words are not of one step.
  word_->passed.store(at_.number());
  word_->step.store((at_.step << 1) | RankWord::kInStepBit);
  page_->ring_demand();
}

void RankGate::end_step() noexcept {
  end_segment();
  if (!in_step_) return;
  in_step_ = false;
  word_->step.store(at_.step << 1);
  page_->ring_progress(rank_);
}

void RankGate::leave() noexcept { end_segment(); }

std::optional<Verdict> RankGate::try_pass() noexcept {
  end_segment();
  return look();
}

Verdict RankGate::pass(Nanoseconds timeout_ns) noexcept {
  if (const auto verdict = try_pass()) return *verdict;
  const Nanoseconds from_ns = real_now_ns();
  Verdict verdict = Verdict::kTimedOut;
  for (Nanoseconds left_ns = timeout_ns; left_ns > 0;
       left_ns = timeout_ns - (real_now_ns() - from_ns)) {
    // The bell is read before the look: what changes after the look makes the futex return.
    const std::uint32_t seen = page_->word().bell.load();
    if (!leader_.is_alive()) page_->shut_down(GroupEnd::kLeaderDied);
    if (const auto found = look()) {
      verdict = *found;
      break;
    }
    page_->ring_demand();
    futex_wait(page_->word().bell, seen, std::min(left_ns, HostGate::kLookAgainNs));
  }
  word_->blocked_ns.fetch_add(real_now_ns() - from_ns, std::memory_order_relaxed);
  return verdict;
}

// What the rank is told without waiting: to go, to stop, or nothing yet.
std::optional<Verdict> RankGate::look() noexcept {
  if (!in_step_ || at_.index == SegmentNumber::kLastIndex) return Verdict::kAborted;
  const std::uint32_t next = at_.number() + 1;
  const std::uint64_t grant = page_->word().grant.load();
  if (!RankPage::covers(grant, next)) return look_behind_credit(grant, next);
  if (!start_segment(next)) return std::nullopt;
  return Verdict::kPassed;
}

std::optional<Verdict> RankGate::look_behind_credit(std::uint64_t grant,
                                                    std::uint32_t next) noexcept {
  // Shut-down bit and credit are one word, so a credit that does not cover `next` is the last.
  if ((grant & GroupWord::kShutDownBit) != 0) return Verdict::kShutDown;
  if (page_->word().aborted_before.load() <= at_.step) return std::nullopt;
  // The leader may have decided before the abort. Either that has been granted by now, and all
  // ranks start it, or it never will be: then no rank does.
  grant = page_->cancel_grants();
  if (!RankPage::covers(grant, next)) return Verdict::kAborted;
  if (!start_segment(next)) return std::nullopt;
  return Verdict::kPassed;
}

bool RankGate::start_segment(std::uint32_t number) noexcept {
  word_->running.store(1);
  started_ns_ = clock_->now_ns();
  // The credit of a group with a dead rank is taken back: that is seen here, or sees `running`.
  if (!RankPage::covers(page_->word().grant.load(), number)) {
    word_->running.store(0);
    page_->ring_progress(rank_);
    return false;
  }
  in_segment_ = true;
  ++at_.index;
  word_->passed.store(number);
  if (page_->credit_left(rank_) <= page_->word().quantum / 2) page_->ring_demand();
  return true;
}

void RankGate::end_segment() noexcept {
  if (!in_segment_) return;
  in_segment_ = false;
  word_->running.store(0);
  const Nanoseconds now_ns = clock_->now_ns();
  page_->line(rank_).segments.record(now_ns - started_ns_);
  page_->line(rank_).recent.record(now_ns - started_ns_, now_ns);
  page_->ring_progress(rank_);
}

}  // namespace rose::compute
