#include "compute/rank_page.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <string>
#include <utility>

#include "base/futex.h"

namespace rose::compute {

namespace {

constexpr std::size_t size_of(std::uint32_t ranks) noexcept {
  return sizeof(GroupWord) + ranks * sizeof(RankLine);
}

static_assert(sizeof(GroupWord) % alignof(RankLine) == 0);

Status not_a_group() { return Status::invalid_argument("the descriptor is not a rank group"); }

}  // namespace

RankPage::RankPage(FileDescriptor fd, Mapping mapping) noexcept
    : fd_{std::move(fd)},
      mapping_{std::move(mapping)},
      word_{std::launder(reinterpret_cast<GroupWord*>(mapping_.data()))},
      lines_{std::launder(reinterpret_cast<RankLine*>(mapping_.data() + sizeof(GroupWord)))} {}

Result<std::shared_ptr<RankPage>> RankPage::create(std::uint32_t ranks, std::uint32_t quantum,
                                                   std::uint64_t before_step) noexcept {
  if (ranks < 1 || ranks > kMostRanks) {
    return Status::invalid_argument("ranks is " + std::to_string(ranks) +
                                    ", but must lie in 1 to " + std::to_string(kMostRanks));
  }
  if (quantum < 1 || quantum > SegmentNumber::kLastIndex) {
    return Status::invalid_argument("quantum must lie in 1 to 65535 segments");
  }
  const Result<ProcessMark> leader = own_mark();
  if (!leader.ok()) return leader.status();
  auto fd = create_memfd("rose-ranks", size_of(ranks));
  if (!fd.ok()) return fd.status();
  auto mapping = Mapping::create(fd.value(), size_of(ranks), Access::kReadWrite);
  if (!mapping.ok()) return mapping.status();
  auto* word = new (mapping.value().data()) GroupWord{};
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    std::byte* at = mapping.value().data() + sizeof(GroupWord) + rank * sizeof(RankLine);
    RankWord& line = (new (at) RankLine{})->word;
    line.step.store(before_step << 1);
    line.passed.store(SegmentNumber{before_step}.number());
  }
  word->grant.store(SegmentNumber{before_step}.number());
  word->ranks = ranks;
  word->quantum = quantum;
  word->leader = leader.value();
  word->magic.store(GroupWord::kMagic);
  std::shared_ptr<RankPage> page{new RankPage{fd.take(), mapping.take()}};
  page->ranks_ = ranks;
  return page;
}

Result<std::shared_ptr<RankPage>> RankPage::attach(const FileDescriptor& fd) noexcept {
  struct stat file{};
  if (::fstat(fd.get(), &file) != 0) return from_errno("fstat of the rank group", errno);
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  // Without the seal another party could shrink the file under our mapping.
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return not_a_group();
  const auto size_bytes = static_cast<std::size_t>(file.st_size);
  if (size_bytes < size_of(1) || size_bytes > size_of(kMostRanks)) return not_a_group();
  auto copy = fd.duplicate();
  if (!copy.ok()) return copy.status();
  auto mapping = Mapping::create(copy.value(), size_bytes, Access::kReadWrite);
  if (!mapping.ok()) return mapping.status();
  std::shared_ptr<RankPage> page{new RankPage{copy.take(), mapping.take()}};
  // Kept, so that nobody's write to the page can lead us out of it.
  page->ranks_ = page->word_->ranks;
  if (page->word_->magic.load() != GroupWord::kMagic || size_bytes != size_of(page->ranks_)) {
    return not_a_group();
  }
  return page;
}

SegmentNumber RankPage::passed(std::uint32_t rank) const noexcept {
  const RankWord& line = lines_[rank].word;
  const std::uint64_t step = line.step.load() >> 1;
  return {step, SegmentNumber::index_of(line.passed.load())};
}

std::uint32_t RankPage::credit_left(std::uint32_t rank) const noexcept {
  if (!is_in_step(rank)) return 0;
  const std::uint32_t passed = lines_[rank].word.passed.load();
  const auto credit = static_cast<std::uint32_t>(word_->grant.load());
  return covers(credit, passed) ? credit - passed : 0;
}

bool RankPage::abort_step() noexcept {
  std::uint64_t before = 0;
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    const std::uint64_t step = lines_[rank].word.step.load();
    if ((step & RankWord::kInStepBit) != 0) before = std::max(before, (step >> 1) + 1);
  }
  if (before == 0) return false;
  std::uint64_t was = word_->aborted_before.load();
  while (was < before && !word_->aborted_before.compare_exchange_weak(was, before)) {
  }
  ring_bell();
  return true;
}

void RankPage::shut_down(GroupEnd why) noexcept {
  std::uint32_t none = static_cast<std::uint32_t>(GroupEnd::kNone);
  word_->end.compare_exchange_strong(none, static_cast<std::uint32_t>(why));
  word_->grant.fetch_or(GroupWord::kShutDownBit);
  ring_bell();
  ring_demand();
}

void RankPage::lose(std::uint32_t rank, GroupEnd why) noexcept {
  const std::uint32_t passed = lines_[rank].word.passed.load();
  if (is_in_step(rank)) {
    std::uint64_t seen = word_->grant.load();
    while (covers(seen, passed) &&
           !word_->grant.compare_exchange_weak(
               seen, (seen & ~GroupWord::kCreditMask) | GroupWord::kShutDownBit | passed)) {
    }
  }
  shut_down(why);
  for (std::uint32_t other = 0; other < ranks_; ++other) ring_progress(other);
}

void RankPage::ring_bell() noexcept {
  word_->bell.fetch_add(1);
  futex_wake_all(word_->bell);
}

void RankPage::ring_demand() noexcept {
  word_->demand.fetch_add(1);
  futex_wake_all(word_->demand);
}

void RankPage::ring_progress(std::uint32_t rank) noexcept {
  RankWord& line = lines_[rank].word;
  line.progress.fetch_add(1);
  if (line.waiters.load() != 0) futex_wake_all(line.progress);
}

}  // namespace rose::compute
