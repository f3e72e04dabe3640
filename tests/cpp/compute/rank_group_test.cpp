#include "compute/rank_group.h"

#include <atomic>
#include <thread>
#include <vector>

#include "check.h"
#include "compute/rank_gate.h"
#include "compute/rank_vote.h"

using namespace rose;
using namespace rose::compute;

namespace {

constexpr Nanoseconds kLongNs = 200'000'000'000;
constexpr std::uint32_t kQuantum = 4;

// A group with its ranks and their votes, all in one process.
struct Rig {
  explicit Rig(std::uint32_t ranks, std::uint64_t before_step = 0)
      : group{RankGroup::create(ranks, kQuantum, before_step).take()} {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      auto gate = RankGate::attach(group->fd(), rank, std::make_shared<BootClock>());
      CHECK(gate.ok());
      gates.push_back(gate.take());
      auto vote = RankVote::attach(group->fd(), rank);
      CHECK(vote.ok());
      votes.push_back(vote.take());
    }
  }

  void begin_steps() {
    for (auto& gate : gates) gate->begin_step();
  }
  void agree(std::uint32_t segments) {
    for (auto& vote : votes) CHECK(vote->agree(segments, vote->close_epoch()));
  }
  GroupAnswer credit(std::uint32_t segments) {
    agree(segments);
    return group->grant(segments);
  }
  // Both ranks in lock step.
  void pass_all(std::uint32_t segments) {
    for (std::uint32_t i = 0; i < segments; ++i) {
      for (auto& gate : gates) CHECK_EQ(gate->pass(1), Verdict::kPassed);
    }
  }
  void expect_all(Verdict verdict) {
    for (auto& gate : gates) CHECK_EQ(gate->pass(1), verdict);
  }

  std::shared_ptr<RankGroup> group;
  std::vector<std::unique_ptr<RankGate>> gates;
  std::vector<std::unique_ptr<RankVote>> votes;
};

}  // namespace

TEST(a_new_group_credits_nothing) {
  Rig rig{2};
  CHECK_EQ(rig.group->grant(1), GroupAnswer::kNoStep);
  rig.begin_steps();
  CHECK_EQ(rig.group->grant(1), GroupAnswer::kNoVote);
  rig.expect_all(Verdict::kTimedOut);
}

TEST(nothing_is_credited_until_every_rank_is_in_its_step_and_every_serving_agrees) {
  Rig rig{3};
  rig.gates[0]->begin_step();
  rig.gates[1]->begin_step();
  CHECK_EQ(rig.group->grant(1), GroupAnswer::kNoStep);
  rig.gates[2]->begin_step();
  CHECK(rig.votes[0]->agree(2, 0));
  CHECK(rig.votes[2]->agree(3, 0));
  CHECK_EQ(rig.group->grant(4), GroupAnswer::kNoVote);
  CHECK(rig.votes[1]->agree(4, 0));
  CHECK_EQ(rig.group->grant(4), GroupAnswer::kGranted);
  rig.pass_all(2);  // the lowest vote
  rig.expect_all(Verdict::kTimedOut);
}

TEST(credit_is_at_most_one_quantum_ahead_of_the_slowest_rank) {
  Rig rig{2};
  rig.begin_steps();
  CHECK_EQ(rig.credit(100), GroupAnswer::kGranted);
  CHECK_EQ(rig.group->grant(100), GroupAnswer::kEnough);
  for (std::uint32_t i = 0; i < kQuantum; ++i) CHECK_EQ(rig.gates[0]->pass(1), Verdict::kPassed);
  CHECK_EQ(rig.gates[0]->pass(1), Verdict::kTimedOut);
  CHECK_EQ(rig.group->grant(100), GroupAnswer::kEnough);  // rank 1 has not started yet
  CHECK_EQ(rig.gates[1]->pass(1), Verdict::kPassed);
  CHECK_EQ(rig.group->grant(100), GroupAnswer::kGranted);
  CHECK_EQ(rig.votes[1]->credit_left(), kQuantum);
  CHECK_EQ(rig.votes[0]->credit_left(), 1);
}

TEST(a_close_lets_what_was_credited_run_out_on_all_ranks_and_no_more) {
  Rig rig{2};
  rig.begin_steps();
  CHECK_EQ(rig.credit(3), GroupAnswer::kGranted);
  CHECK_EQ(rig.gates[0]->pass(1), Verdict::kPassed);
  rig.votes[1]->close();
  CHECK_EQ(rig.group->grant(4), GroupAnswer::kNoVote);
  CHECK_EQ(rig.gates[0]->pass(1), Verdict::kPassed);
  CHECK_EQ(rig.gates[0]->pass(1), Verdict::kPassed);
  CHECK_EQ(rig.gates[0]->pass(1), Verdict::kTimedOut);
  for (int i = 0; i < 3; ++i) CHECK_EQ(rig.gates[1]->pass(1), Verdict::kPassed);
  CHECK_EQ(rig.gates[1]->pass(1), Verdict::kTimedOut);
  CHECK(rig.group->slowest() == rig.group->fastest());
}

TEST(a_vote_from_before_a_close_does_not_count) {
  Rig rig{2};
  rig.begin_steps();
  const std::uint32_t epoch = rig.votes[0]->close_epoch();
  CHECK(rig.votes[1]->agree(4, rig.votes[1]->close_epoch()));
  rig.votes[0]->close();
  CHECK(!rig.votes[0]->agree(4, epoch));
  CHECK(!rig.votes[0]->agrees());
  CHECK_EQ(rig.group->grant(4), GroupAnswer::kNoVote);
}

TEST(a_grant_from_before_a_close_does_not_happen) {
  Rig rig{2};
  rig.begin_steps();
  rig.agree(4);
  PlannedGrant grant;
  CHECK_EQ(rig.group->plan(4, grant), GroupAnswer::kGranted);
  rig.votes[1]->close();
  CHECK(rig.votes[1]->agree(4, rig.votes[1]->close_epoch()));  // another vote does not mend it
  CHECK_EQ(rig.group->commit(grant), GroupAnswer::kOvertaken);
  rig.expect_all(Verdict::kTimedOut);
  CHECK_EQ(rig.group->plan(4, grant), GroupAnswer::kGranted);
  rig.group->shut_down();
  CHECK_EQ(rig.group->commit(grant), GroupAnswer::kOvertaken);
  rig.expect_all(Verdict::kShutDown);
}

TEST(a_grant_from_before_an_abort_happens_for_all_ranks_or_for_none) {
  Rig rig{2};
  PlannedGrant grant;
  rig.begin_steps();
  rig.agree(2);
  CHECK_EQ(rig.group->plan(2, grant), GroupAnswer::kGranted);
  CHECK(rig.votes[0]->abort_step());
  CHECK_EQ(rig.gates[0]->pass(1), Verdict::kAborted);
  CHECK_EQ(rig.group->commit(grant), GroupAnswer::kOvertaken);
  CHECK_EQ(rig.gates[1]->pass(1), Verdict::kAborted);

  rig.begin_steps();
  rig.agree(2);
  CHECK_EQ(rig.group->plan(2, grant), GroupAnswer::kGranted);
  CHECK(rig.votes[0]->abort_step());
  CHECK_EQ(rig.group->commit(grant), GroupAnswer::kGranted);  // nobody has been told yet
  rig.pass_all(2);
  rig.expect_all(Verdict::kAborted);
}

TEST(no_grant_follows_a_close_that_returned) {
  Rig rig{2};
  rig.begin_steps();
  std::atomic<bool> done{false};
  std::thread leader{[&] {
    while (!done.load()) (void)rig.group->grant(kQuantum);
  }};
  std::thread other{[&] {  // moves on, so that there is always something to grant
    while (!done.load()) {
      for (auto& gate : rig.gates) (void)gate->try_pass();
      if (rig.gates[0]->passed().index > 1000) rig.begin_steps();
    }
  }};
  for (int round = 0; round < 1000; ++round) {
    const auto agree = [&] {
      for (auto& vote : rig.votes) (void)vote->agree(kQuantum, vote->close_epoch());
    };
    agree();
    // Every fourth close waits for a grant, so that there are some on a machine with few cores.
    const std::uint64_t grants = rig.group->grants();
    for (int spin = round * 37 % 1500; spin > 0; --spin) (void)rig.votes[0]->agrees();
    while (round % 4 == 0 && rig.group->grants() == grants) agree();
    rig.votes[round % 2]->close();
    const std::uint32_t credit = rig.group->credit();
    for (int spin = 0; spin < 200; ++spin) CHECK_EQ(rig.group->credit(), credit);
  }
  done.store(true);
  leader.join();
  other.join();
}

TEST(serving_waits_until_the_credited_segments_have_ended) {
  Rig rig{2};
  rig.begin_steps();
  CHECK_EQ(rig.credit(2), GroupAnswer::kGranted);
  rig.votes[0]->close();
  CHECK(!rig.votes[0]->wait_parked(1'000'000).has_value());  // none runs, but two may start
  rig.pass_all(2);
  CHECK(!rig.votes[0]->wait_parked(1'000'000).has_value());  // the second runs
  std::thread serving{[&] { CHECK(rig.votes[0]->wait_parked(kLongNs).has_value()); }};
  rig.gates[0]->leave();
  serving.join();
  CHECK(!rig.votes[1]->is_parked());
  rig.gates[1]->end_step();
  CHECK(rig.votes[1]->is_parked());
}

TEST(credit_that_a_step_leaves_over_is_worth_nothing_in_the_next) {
  Rig rig{2};
  rig.begin_steps();
  CHECK_EQ(rig.credit(4), GroupAnswer::kGranted);
  rig.pass_all(1);
  for (auto& gate : rig.gates) gate->end_step();
  CHECK(rig.votes[0]->is_parked());
  rig.begin_steps();
  rig.expect_all(Verdict::kTimedOut);
  CHECK_EQ(rig.group->grant(4), GroupAnswer::kNoVote);  // a vote is of one step, too
  CHECK_EQ(rig.credit(2), GroupAnswer::kGranted);
  rig.pass_all(2);
  rig.expect_all(Verdict::kTimedOut);
}

TEST(a_rank_that_is_ahead_by_a_step_leaves_the_others_their_credit) {
  Rig rig{2};
  rig.begin_steps();
  CHECK_EQ(rig.credit(2), GroupAnswer::kGranted);
  CHECK_EQ(rig.gates[0]->pass(1), Verdict::kPassed);
  CHECK_EQ(rig.gates[0]->pass(1), Verdict::kPassed);
  rig.gates[0]->begin_step();
  rig.agree(4);
  CHECK_EQ(rig.group->grant(4), GroupAnswer::kGranted);
  CHECK_EQ(rig.gates[0]->pass(1), Verdict::kTimedOut);
  CHECK_EQ(rig.gates[1]->pass(1), Verdict::kPassed);
  CHECK_EQ(rig.gates[1]->pass(1), Verdict::kPassed);
  rig.gates[1]->begin_step();
  CHECK_EQ(rig.credit(1), GroupAnswer::kGranted);
  rig.pass_all(1);
}

TEST(an_abort_is_told_behind_the_same_segment_on_all_ranks) {
  Rig rig{2};
  CHECK(!rig.votes[0]->abort_step());  // no step
  rig.begin_steps();
  CHECK_EQ(rig.credit(3), GroupAnswer::kGranted);
  CHECK_EQ(rig.gates[0]->pass(1), Verdict::kPassed);
  CHECK(rig.votes[1]->abort_step());
  CHECK_EQ(rig.gates[0]->pass(1), Verdict::kPassed);
  CHECK_EQ(rig.gates[0]->pass(1), Verdict::kPassed);
  CHECK_EQ(rig.gates[0]->pass(1), Verdict::kAborted);
  rig.agree(4);
  CHECK_EQ(rig.group->grant(4), GroupAnswer::kAborted);
  for (int i = 0; i < 3; ++i) CHECK_EQ(rig.gates[1]->pass(1), Verdict::kPassed);
  rig.expect_all(Verdict::kAborted);
  rig.expect_all(Verdict::kAborted);  // for good
  rig.begin_steps();
  rig.expect_all(Verdict::kTimedOut);
  CHECK_EQ(rig.credit(1), GroupAnswer::kGranted);
  rig.pass_all(1);
}

TEST(an_abort_reaches_parked_ranks) {
  Rig rig{2};
  rig.begin_steps();
  std::vector<std::thread> ranks;
  for (auto& gate : rig.gates) {
    ranks.emplace_back([&gate] { CHECK_EQ(gate->pass(kLongNs), Verdict::kAborted); });
  }
  CHECK(rig.group->abort_step());
  for (auto& rank : ranks) rank.join();
}

TEST(an_abort_and_a_grant_at_once_end_all_ranks_at_one_segment) {
  Rig rig{2};
  for (int round = 0; round < 200; ++round) {
    rig.begin_steps();
    rig.agree(kQuantum);
    const auto run = [](RankGate& gate) {
      while (gate.pass(kLongNs) == Verdict::kPassed) {
      }
    };
    std::atomic<bool> aborted{false};
    std::thread leader{[&] {
      while (!aborted.load()) {
        (void)rig.group->grant(1);
        std::this_thread::yield();
      }
      (void)rig.group->grant(kQuantum);
    }};
    std::thread first{run, std::ref(*rig.gates[0])};
    std::thread second{run, std::ref(*rig.gates[1])};
    CHECK(rig.votes[round % 2]->abort_step());
    first.join();
    second.join();
    aborted.store(true);
    leader.join();
    CHECK(rig.gates[0]->passed() == rig.gates[1]->passed());
  }
}

TEST(after_a_shut_down_all_ranks_stop_behind_the_last_credited_segment) {
  Rig rig{2};
  rig.begin_steps();
  CHECK_EQ(rig.credit(2), GroupAnswer::kGranted);
  CHECK_EQ(rig.gates[0]->pass(1), Verdict::kPassed);
  rig.group->shut_down();
  CHECK_EQ(rig.group->grant(4), GroupAnswer::kShutDown);
  CHECK(!rig.votes[0]->agree(4, rig.votes[0]->close_epoch()));
  CHECK_EQ(rig.gates[0]->pass(1), Verdict::kPassed);
  CHECK_EQ(rig.gates[1]->pass(1), Verdict::kPassed);
  CHECK_EQ(rig.gates[1]->pass(1), Verdict::kPassed);
  rig.expect_all(Verdict::kShutDown);
  rig.begin_steps();
  rig.expect_all(Verdict::kShutDown);
  CHECK(rig.group->end() == GroupEnd::kAsked);
}

TEST(what_a_lost_rank_has_started_the_others_start_and_nothing_else) {
  Rig rig{3};
  rig.begin_steps();
  CHECK_EQ(rig.credit(4), GroupAnswer::kGranted);
  CHECK_EQ(rig.gates[0]->pass(1), Verdict::kPassed);
  for (int i = 0; i < 2; ++i) CHECK_EQ(rig.gates[1]->pass(1), Verdict::kPassed);
  rig.gates[1].reset();
  CHECK(rig.group->end() == GroupEnd::kRankLeft);
  CHECK_EQ(rig.gates[0]->pass(kLongNs), Verdict::kPassed);
  CHECK_EQ(rig.gates[0]->pass(kLongNs), Verdict::kShutDown);
  for (int i = 0; i < 2; ++i) CHECK_EQ(rig.gates[2]->pass(kLongNs), Verdict::kPassed);
  CHECK_EQ(rig.gates[2]->pass(kLongNs), Verdict::kShutDown);
}

TEST(ranks_are_told_when_their_leader_leaves) {
  Rig rig{2};
  rig.begin_steps();
  std::thread rank{[&] { CHECK_EQ(rig.gates[0]->pass(kLongNs), Verdict::kShutDown); }};
  rig.group.reset();
  rank.join();
  CHECK_EQ(rig.gates[1]->pass(1), Verdict::kShutDown);
}

TEST(the_leaders_thread_credits_quantum_after_quantum) {
  Rig rig{2};
  RankLeader leader{rig.group, 5'000'000};
  CHECK(leader.start().ok());
  CHECK(!leader.start().ok());
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (auto& vote : rig.votes) {
    threads.emplace_back([&] {
      while (!done.load()) {
        const std::uint32_t seen = vote->demand();
        (void)vote->agree(kQuantum, vote->close_epoch());
        vote->wait_demand(seen, 5'000'000);
      }
    });
  }
  std::vector<std::thread> ranks;
  for (auto& gate : rig.gates) {
    ranks.emplace_back([&] {
      for (int step = 0; step < 20; ++step) {
        gate->begin_step();
        for (int i = 0; i < 30; ++i) CHECK_EQ(gate->pass(kLongNs), Verdict::kPassed);
        gate->end_step();
      }
    });
  }
  for (auto& rank : ranks) rank.join();
  done.store(true);
  for (auto& thread : threads) thread.join();
  leader.stop();
  CHECK(rig.group->slowest() == (SegmentNumber{20, 30}));
}

TEST(steps_wrap_in_their_16_bits_without_a_gap) {
  Rig rig{2, 0xFFFFFFFDULL};  // the low halves of the next steps: FFFE, FFFF, 0, 1
  for (int step = 0; step < 4; ++step) {
    rig.begin_steps();
    rig.expect_all(Verdict::kTimedOut);
    CHECK_EQ(rig.credit(2), GroupAnswer::kGranted);
    rig.pass_all(2);
    rig.expect_all(Verdict::kTimedOut);
    if (step % 2 == 1) {
      CHECK(rig.group->abort_step());
      rig.expect_all(Verdict::kAborted);
    }
  }
  CHECK(rig.group->fastest() == (SegmentNumber{0x100000001ULL, 2}));
}

TEST(close_epochs_wrap_without_an_old_grant_or_vote_counting) {
  Rig rig{2};
  auto& word = rig.group->page().word().grant;
  word.store(word.load() | 0xFFFFFFFE00000000ULL);  // the last of 2^31 epochs
  auto& vote = rig.group->page().line(0).word.vote;
  vote.store(vote.load() | 0xFFFFFFFE00000000ULL);
  rig.begin_steps();
  CHECK_EQ(rig.credit(2), GroupAnswer::kGranted);
  const std::uint32_t epoch = rig.votes[0]->close_epoch();
  rig.votes[0]->close();
  CHECK_EQ(rig.votes[0]->close_epoch(), 0);
  CHECK_EQ(word.load() >> 33, 0);
  CHECK(!rig.group->is_shut_down());
  CHECK(!rig.votes[0]->agree(2, epoch));
  rig.pass_all(2);
  rig.expect_all(Verdict::kTimedOut);
  CHECK_EQ(rig.credit(1), GroupAnswer::kGranted);
}

TEST(a_device_that_compares_32_bits_sees_the_same_order) {
  const auto waits_no_more = [](std::uint32_t credit, std::uint32_t number) {
    return static_cast<std::int32_t>(credit - number) >= 0;  // WAIT_VALUE_32, GEQ
  };
  for (const std::uint64_t step : {0ULL, 1ULL, 0x7FFFULL, 0x8000ULL, 0xFFFFULL, 0x123456ULL}) {
    const SegmentNumber credit{step, 7};
    for (const std::uint32_t index : {1U, 6U, 7U, 8U, SegmentNumber::kLastIndex}) {
      const std::uint32_t number = SegmentNumber{step, index}.number();
      CHECK_EQ(waits_no_more(credit.number(), number), RankPage::covers(credit.number(), number));
      CHECK(!waits_no_more(credit.number(), SegmentNumber{step + 1, index}.number()));
    }
  }
}

TEST(a_step_ends_behind_its_last_number) {
  Rig rig{1};
  rig.begin_steps();
  for (std::uint32_t i = 0; i < SegmentNumber::kLastIndex; ++i) {
    CHECK(rig.votes[0]->agree(1, 0));
    CHECK_EQ(rig.group->grant(kQuantum), GroupAnswer::kGranted);
    CHECK_EQ(rig.gates[0]->pass(1), Verdict::kPassed);
  }
  CHECK(rig.votes[0]->agree(1, 0));
  CHECK_EQ(rig.group->grant(kQuantum), GroupAnswer::kEnough);
  CHECK_EQ(rig.gates[0]->pass(1), Verdict::kAborted);
}

TEST(a_gate_outside_a_step_starts_nothing) {
  Rig rig{1};
  CHECK_EQ(rig.gates[0]->pass(1), Verdict::kAborted);
  rig.begin_steps();
  CHECK_EQ(rig.credit(4), GroupAnswer::kGranted);
  rig.pass_all(1);
  rig.gates[0]->end_step();
  CHECK_EQ(rig.gates[0]->pass(1), Verdict::kAborted);
  CHECK(rig.votes[0]->is_parked());
}

TEST(ranks_and_files_that_are_none_are_refused) {
  const auto clock = std::make_shared<BootClock>();
  CHECK(!RankGroup::create(0, 1).ok());
  CHECK(!RankGroup::create(65, 1).ok());
  CHECK(!RankGroup::create(2, 0).ok());
  CHECK(!RankGroup::create(2, 65'536).ok());
  Rig rig{2};
  CHECK(!RankGate::attach(rig.group->fd(), 2, clock).ok());
  CHECK(!RankGate::attach(rig.group->fd(), 0, clock).ok());  // taken
  CHECK(!RankVote::attach(rig.group->fd(), 2).ok());
  auto zeros = create_memfd("zeros", sizeof(GroupWord) + sizeof(RankLine));
  CHECK(!RankVote::attach(zeros.value(), 0).ok());
  auto small = create_memfd("small", 64);
  CHECK(!RankVote::attach(small.value(), 0).ok());
  rig.gates.pop_back();
  CHECK_EQ(RankGate::attach(rig.group->fd(), 1, clock).status().code(), Code::kUnavailable);
}

TEST(a_process_is_known_by_its_number_and_its_start) {
  const auto mark = own_mark();
  CHECK(mark.ok());
  CHECK(open_process(mark.value()).ok());
  ProcessMark successor = mark.value();
  ++successor.started_ticks;
  CHECK_EQ(open_process(successor).status().code(), Code::kUnavailable);
}

TEST_MAIN()
