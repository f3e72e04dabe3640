#include "compute/rank_group.h"

#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/futex.h"

namespace rose::compute {

namespace {

// What one rank has done and what its serving bears, of one step; nothing outside one.
struct Standing {
  SegmentNumber passed;
  std::optional<SegmentNumber> borne;
};

std::optional<Standing> standing_of(const RankWord& line) noexcept {
  if (line.present.load() != RankWord::kHere) return std::nullopt;
  const std::uint64_t step = line.step.load();
  const std::uint32_t passed = line.passed.load();
  const SegmentNumber first{step >> 1};
  if ((step & RankWord::kInStepBit) == 0 || !SegmentNumber::same_step(first.number(), passed)) {
    return std::nullopt;
  }
  Standing out{.passed = first.plus(SegmentNumber::index_of(passed)), .borne = {}};
  const std::uint64_t vote = line.vote.load();
  const auto last = static_cast<std::uint32_t>(vote);
  if ((vote & RankWord::kAgreesBit) != 0 && SegmentNumber::same_step(last, passed)) {
    out.borne = first.plus(SegmentNumber::index_of(last));
  }
  return out;
}

}  // namespace

RankGroup::RankGroup(std::shared_ptr<RankPage> page) noexcept
    : page_{std::move(page)}, owner_{::getpid()} {}

Result<std::shared_ptr<RankGroup>> RankGroup::create(std::uint32_t ranks, std::uint32_t quantum,
                                                     std::uint64_t before_step) noexcept {
  auto page = RankPage::create(ranks, quantum, before_step);
  if (!page.ok()) return page.status();
  return std::shared_ptr<RankGroup>{new RankGroup{page.take()}};
}

RankGroup::~RankGroup() {
  // A child that was forked has a copy of this object, and leads nobody.
  if (owner_ == ::getpid()) page_->shut_down(GroupEnd::kLeaderLeft);
}

GroupAnswer RankGroup::grant(std::uint32_t segments) noexcept {
  PlannedGrant grant;
  const GroupAnswer answer = plan(segments, grant);
  return answer == GroupAnswer::kGranted ? commit(grant) : answer;
}

GroupAnswer RankGroup::plan(std::uint32_t segments, PlannedGrant& grant) const noexcept {
  const GroupWord& group = page_->word();
  // First of all: whatever forbids the grant from here on changes this word.
  const std::uint64_t seen = group.grant.load();
  if ((seen & GroupWord::kShutDownBit) != 0) return GroupAnswer::kShutDown;
  std::optional<SegmentNumber> slowest;
  std::optional<SegmentNumber> borne;
  bool all_agree = true;
  for (std::uint32_t rank = 0; rank < page_->ranks(); ++rank) {
    const auto standing = standing_of(page_->line(rank).word);
    if (!standing) return GroupAnswer::kNoStep;
    slowest = std::min(slowest.value_or(standing->passed), standing->passed);
    if (!standing->borne) all_agree = false;
    if (all_agree) borne = std::min(borne.value_or(*standing->borne), *standing->borne);
  }
  if (!all_agree) return GroupAnswer::kNoVote;
  const SegmentNumber last = std::min(slowest->plus(std::min(segments, group.quantum)), *borne);
  if (last.step < group.aborted_before.load()) return GroupAnswer::kAborted;
  if (last <= *slowest || RankPage::covers(seen, last.number())) return GroupAnswer::kEnough;
  grant = {.seen = seen, .granted = (seen & ~GroupWord::kCreditMask) | last.number()};
  return GroupAnswer::kGranted;
}

GroupAnswer RankGroup::commit(const PlannedGrant& grant) noexcept {
  std::uint64_t seen = grant.seen;
  if (!page_->word().grant.compare_exchange_strong(seen, grant.granted)) {
    return GroupAnswer::kOvertaken;
  }
  grants_.fetch_add(1);
  page_->ring_bell();
  return GroupAnswer::kGranted;
}

void RankGroup::watch() noexcept {
  const std::scoped_lock lock{watch_mutex_};
  for (std::uint32_t rank = 0; rank < page_->ranks(); ++rank) {
    const RankWord& line = page_->line(rank).word;
    if (line.present.load() != RankWord::kHere) continue;
    std::optional<Process>& process = processes_[rank];
    if (!process) {
      Result<Process> opened = open_process(line.process);
      if (opened.ok()) process.emplace(opened.take());
    }
    if (!process || !process->is_alive()) bury(rank);
  }
}

// The rank is dead, so nobody writes its line any more.
void RankGroup::bury(std::uint32_t rank) noexcept {
  page_->lose(rank, GroupEnd::kRankDied);
  RankWord& line = page_->line(rank).word;
  line.step.fetch_and(~RankWord::kInStepBit);
  line.running.store(0);
  line.present.store(RankWord::kGone);
  page_->ring_progress(rank);
}

GroupAnswer RankGroup::look() noexcept {
  watch();
  return grant(quantum());
}

SegmentNumber RankGroup::slowest() const noexcept {
  SegmentNumber out = page_->passed(0);
  for (std::uint32_t rank = 1; rank < ranks(); ++rank) out = std::min(out, page_->passed(rank));
  return out;
}

SegmentNumber RankGroup::fastest() const noexcept {
  SegmentNumber out = page_->passed(0);
  for (std::uint32_t rank = 1; rank < ranks(); ++rank) out = std::max(out, page_->passed(rank));
  return out;
}

Status RankLeader::start() noexcept {
  if (thread_.joinable()) return Status::invalid_argument("the group's leader runs already");
  stopping_.store(false);
  try {
    thread_ = std::thread{[this] { run(); }};
  } catch (const std::system_error& error) {
    return from_errno("starting the leader's thread", error.code().value());
  }
  return {};
}

void RankLeader::stop() noexcept {
  if (!thread_.joinable()) return;
  stopping_.store(true);
  group_->page().ring_demand();
  thread_.join();
}

void RankLeader::run() noexcept {
  GroupWord& word = group_->page().word();
  while (!stopping_.load()) {
    // Read before the look: a ring during the look makes the wait return at once.
    const std::uint32_t seen = word.demand.load();
    const GroupAnswer answer = group_->look();
    if (stopping_.load() || answer == GroupAnswer::kShutDown) return;
    if (answer != GroupAnswer::kOvertaken) futex_wait(word.demand, seen, poll_ns_);
  }
}

}  // namespace rose::compute
