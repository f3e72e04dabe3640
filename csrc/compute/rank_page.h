// What all parties of a tensor-parallel borrower see, in one memfd: one word of credit for the
// whole group, and a line for each rank.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <type_traits>

#include "base/histogram.h"
#include "base/memfd.h"
#include "base/status.h"
#include "compute/durations.h"
#include "compute/process_mark.h"

namespace rose::compute {

// Segments are numbered (step, index in the step), index from 1. The number that the words and a
// device hold has the low half of the step in its high half: numbers of a step follow one another,
// and all of the next step are higher, in the cyclic order of 32 bits in which a device compares.
// So credit that a step leaves over is worth nothing in the next, on every rank, without a word.
struct SegmentNumber {
  static constexpr unsigned kIndexBits = 16;
  static constexpr std::uint32_t kLastIndex = (1U << kIndexBits) - 1;

  std::uint64_t step{0};
  std::uint32_t index{0};

  static constexpr std::uint32_t index_of(std::uint32_t number) noexcept {
    return number & kLastIndex;
  }
  static constexpr bool same_step(std::uint32_t one, std::uint32_t other) noexcept {
    return one >> kIndexBits == other >> kIndexBits;
  }
  constexpr std::uint32_t number() const noexcept {
    return static_cast<std::uint32_t>(step << kIndexBits) | index;
  }
  // Never into the next step.
  constexpr SegmentNumber plus(std::uint32_t segments) const noexcept {
    return {step, segments < kLastIndex - index ? index + segments : kLastIndex};
  }
  constexpr auto operator<=>(const SegmentNumber&) const noexcept = default;
};

enum class GroupEnd : std::uint32_t {
  kNone = 0,
  kAsked = 1,
  kRankLeft = 2,
  kRankDied = 3,
  kLeaderLeft = 4,
  kLeaderDied = 5,
};

// 1. `grant` is all that decides: a rank starts segment s when the low half covers s, which is the
//    same on every rank, and looks at nothing else. Whatever else is in there is looked at behind
//    the last covered segment. So every segment that one rank has started, all others may start.
// 2. The low half only grows, but for a rank that is lost (RankPage::lose). At most `quantum` lies
//    between it and the slowest rank.
// 3. Whoever grants names the whole word as it was when it looked. A close of any rank's serving,
// an
//    abort that was told and a shut-down change the high half first: no grant of before follows
//    them.
struct GroupWord {
  static constexpr std::uint64_t kShutDownBit = std::uint64_t{1} << 32;
  static constexpr std::uint64_t kOneEpoch = std::uint64_t{1} << 33;
  static constexpr std::uint64_t kCreditMask = 0xFFFFFFFF;
  static constexpr std::uint32_t kMagic = 0x31475452;  // "RTG1"

  std::atomic<std::uint64_t> grant;   // credit, shut-down bit, close epoch
  std::atomic<std::uint32_t> bell;    // futex word of the ranks
  std::atomic<std::uint32_t> demand;  // futex word of the leader
  // One more than the last step that ends at its credit; 0 when there is none.
  std::atomic<std::uint64_t> aborted_before;
  std::uint32_t ranks;
  std::uint32_t quantum;
  ProcessMark leader;
  std::atomic<std::uint32_t> end;  // GroupEnd
  std::atomic<std::uint32_t> magic;
  std::uint64_t zero;
};

// The first 64 bytes of a rank's line. `vote` is its serving's, `present` and `running` also the
// leader's once the rank is dead, all else the rank's own; `passed` a device may write.
struct RankWord {
  static constexpr std::uint64_t kAgreesBit = std::uint64_t{1} << 32;
  static constexpr std::uint64_t kOneEpoch = std::uint64_t{1} << 33;
  static constexpr std::uint64_t kInStepBit = 1;

  enum Presence : std::uint32_t { kAbsent = 0, kAttaching = 1, kHere = 2, kGone = 3 };

  std::atomic<std::uint64_t> vote;      // the last segment its serving bears, bit, close epoch
  std::atomic<std::uint64_t> step;      // its number, doubled, plus kInStepBit
  std::atomic<std::uint32_t> passed;    // the segment that started last
  std::atomic<std::uint32_t> running;   // 1 from before a segment's last look at `grant` to its end
  std::atomic<std::uint32_t> progress;  // futex word of serving: a segment or a step has ended
  std::atomic<std::uint32_t> waiters;   // on `progress`
  std::atomic<std::uint32_t> present;
  std::uint32_t zero;
  ProcessMark process;  // valid from kHere on
  std::atomic<Nanoseconds> blocked_ns;
};

// A device waits for `grant` (its low half: credit >= s) and writes `passed`, with the operations
// of a StreamGate less the one on the open bit. Both compare and write 32 bits that lie 4-aligned.
static_assert(sizeof(GroupWord) == 64 && offsetof(GroupWord, grant) == 0);
static_assert(sizeof(RankWord) == 64 && offsetof(RankWord, passed) == 16);
static_assert(std::is_standard_layout_v<GroupWord> && std::is_standard_layout_v<RankWord>);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

struct RankLine {
  RankWord word{};
  Histogram segments;
  DurationRing recent;
};

// Owns a mapping of the page, and knows what all parties do alike. Any thread.
class RankPage {
 public:
  static constexpr std::uint32_t kMostRanks = 64;

  // `before_step`: steps are counted from the next one on.
  static Result<std::shared_ptr<RankPage>> create(std::uint32_t ranks, std::uint32_t quantum,
                                                  std::uint64_t before_step) noexcept;
  static Result<std::shared_ptr<RankPage>> attach(const FileDescriptor& fd) noexcept;

  const FileDescriptor& fd() const noexcept { return fd_; }
  std::uint32_t ranks() const noexcept { return ranks_; }
  GroupWord& word() const noexcept { return *word_; }
  // `rank` < ranks().
  RankLine& line(std::uint32_t rank) const noexcept { return lines_[rank]; }

  static bool covers(std::uint64_t grant, std::uint32_t number) noexcept {
    const auto credit = static_cast<std::uint32_t>(grant);
    return SegmentNumber::same_step(credit, number) && credit >= number;
  }
  bool is_shut_down() const noexcept {
    return (word_->grant.load() & GroupWord::kShutDownBit) != 0;
  }
  GroupEnd end() const noexcept { return static_cast<GroupEnd>(word_->end.load()); }
  bool is_in_step(std::uint32_t rank) const noexcept {
    return (lines_[rank].word.step.load() & RankWord::kInStepBit) != 0;
  }
  // Of the segment that started last. Exact while that rank does not begin a step.
  SegmentNumber passed(std::uint32_t rank) const noexcept;
  // Segments of its step that this rank may start without a further word.
  std::uint32_t credit_left(std::uint32_t rank) const noexcept;

  // No grant that was decided before follows this. Returns the word it left.
  std::uint64_t cancel_grants() noexcept {
    return word_->grant.fetch_add(GroupWord::kOneEpoch) + GroupWord::kOneEpoch;
  }
  // The step that is in flight ends at its credit, on every rank. False when none is.
  bool abort_step() noexcept;
  // Everybody stops at the credit of now; the first reason is kept.
  void shut_down(GroupEnd why) noexcept;
  // As shut_down, but `rank` will start no segment any more. What it has started the others start
  // too, for they may be in it already; what it has not started could never end, so they stop
  // there.
  void lose(std::uint32_t rank, GroupEnd why) noexcept;
  void ring_bell() noexcept;
  void ring_demand() noexcept;
  void ring_progress(std::uint32_t rank) noexcept;

 private:
  RankPage(FileDescriptor fd, Mapping mapping) noexcept;

  FileDescriptor fd_;
  Mapping mapping_;
  GroupWord* word_;
  RankLine* lines_;
  std::uint32_t ranks_{0};
};

}  // namespace rose::compute
