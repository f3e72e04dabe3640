#include "compute/rank_vote.h"

#include <algorithm>
#include <string>

#include "base/futex.h"
#include "compute/host_gate.h"

namespace rose::compute {

Result<std::unique_ptr<RankVote>> RankVote::attach(const FileDescriptor& fd,
                                                   std::uint32_t rank) noexcept {
  auto page = RankPage::attach(fd);
  if (!page.ok()) return page.status();
  if (rank >= page.value()->ranks()) {
    return Status::invalid_argument("there is no rank " + std::to_string(rank) + " in a group of " +
                                    std::to_string(page.value()->ranks()));
  }
  return std::unique_ptr<RankVote>{new RankVote{page.take(), rank}};
}

bool RankVote::agree(std::uint32_t segments, std::uint32_t expected_epoch) noexcept {
  if (is_shut_down()) return false;
  const std::uint64_t epoch = std::uint64_t{expected_epoch} << kEpochShift;
  const std::uint64_t agreed = epoch | RankWord::kAgreesBit | passed().plus(segments).number();
  std::uint64_t vote = word_->vote.load();
  do {
    if (vote >> kEpochShift != agreed >> kEpochShift) return false;
  } while (!word_->vote.compare_exchange_weak(vote, agreed));
  page_->ring_demand();
  return true;
}

void RankVote::close() noexcept {
  std::uint64_t vote = word_->vote.load();
  // Fails only when another party changed it meanwhile; each of them does so once.
  while (!word_->vote.compare_exchange_weak(
      vote, (vote & ~(RankWord::kAgreesBit | GroupWord::kCreditMask)) + RankWord::kOneEpoch)) {
  }
  // Behind the vote: a leader that read it before read the group's word before this, too.
  page_->cancel_grants();
}

void RankVote::wait_demand(std::uint32_t seen, Nanoseconds timeout_ns) const noexcept {
  futex_wait(page_->word().demand, seen, timeout_ns);
}

std::uint32_t RankVote::vote_left() const noexcept {
  const std::uint64_t vote = word_->vote.load();
  const std::uint32_t number = passed().number();
  // A vote is a number of a step as a grant is, and stale in the next as a grant is.
  const bool counts = (vote & RankWord::kAgreesBit) != 0 && RankPage::covers(vote, number);
  return counts ? static_cast<std::uint32_t>(vote) - number : 0;
}

bool RankVote::is_parked() const noexcept {
  if (credit_left() != 0) return false;
  // Read last: a segment announces itself before it uses its credit up.
  return word_->running.load() == 0;
}

std::optional<Nanoseconds> RankVote::wait_parked(Nanoseconds timeout_ns) noexcept {
  if (is_parked()) return 0;
  const Nanoseconds from_ns = real_now_ns();
  std::optional<Nanoseconds> parked_after_ns;
  word_->waiters.fetch_add(1);
  for (;;) {
    const std::uint32_t seen = word_->progress.load();
    const Nanoseconds waited_ns = real_now_ns() - from_ns;
    if (is_parked()) parked_after_ns = waited_ns;
    if (parked_after_ns || waited_ns >= timeout_ns) break;
    futex_wait(word_->progress, seen, std::min(timeout_ns - waited_ns, HostGate::kLookAgainNs));
  }
  word_->waiters.fetch_sub(1);
  return parked_after_ns;
}

}  // namespace rose::compute
