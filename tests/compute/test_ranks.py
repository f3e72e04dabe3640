"""A tensor-parallel borrower in real processes: a collective in each segment, never a deadlock."""

import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.reduction import recv_handle
from pathlib import Path

import pytest

from rose._core import GroupAnswer, GroupEnd, RankGate, RankGroup, RankLeader, RankVote, Verdict
from rose.compute import SynchronousGate
from rose.compute.ranks import Voter, rank_gate
from rose.errors import DeadlineExceeded, InvalidArgument, Unavailable
from tests.compute.rank_processes import LONG_MS, Log, RankProcess, Work, lead, ranks_of

QUANTUM = 4
HANG_S = 60.0


@contextmanager
def serving(group: RankGroup, *, busy: threading.Event | None = None) -> Iterator[list[RankVote]]:
    """Lead the group and vote for every rank; nobody bears anything while serving is busy."""
    votes = [RankVote.attach(group.fileno(), rank) for rank in range(group.ranks)]

    def bears(left: int) -> int:
        del left
        return 0 if busy is not None and busy.is_set() else group.quantum

    voters = [Voter(vote, bears, quantum=group.quantum, poll_ms=5) for vote in votes]
    leader = RankLeader(group, poll_ms=5)
    leader.start()
    for voter in voters:
        voter.start()
    try:
        yield votes
    finally:
        for voter in voters:
            voter.stop()
        leader.stop()


def logs_of(ranks: list[RankProcess]) -> list[tuple[Log, Log | None]]:
    return [rank.wait_for("log") for rank in ranks]


@pytest.mark.parametrize("count", [2, 3])
def test_ranks_that_are_paused_at_random_compute_what_they_compute_alone(
    count: int, tmp_path: Path
) -> None:
    group = RankGroup(ranks=count, quantum=QUANTUM)
    work = Work(steps=8, segments=15, seed=count)
    chance = random.Random(count)
    closes = 0
    with (
        ranks_of(group.fileno(), count, tmp_path / "store", work, twice=True) as ranks,
        serving(group) as votes,
    ):
        for rank in ranks:
            rank.wait_for("here")
        while group.passed[0] < (work.steps, work.segments):
            vote = chance.choice(votes)
            vote.close()
            closes += 1
            credit = [one.credit_left for one in votes]
            assert max(credit) <= QUANTUM
            if chance.random() < 0.5:
                assert vote.wait_parked(timeout_ms=LONG_MS) is not None
        logs = logs_of(ranks)
    everything = [(s + 1, i + 1) for s in range(work.steps) for i in range(work.segments)]
    for gated, alone in logs:
        assert alone is not None
        assert gated.started == everything
        assert gated.output == alone.output
    assert closes >= 10


def test_segments_that_one_rank_has_started_end_although_the_others_serving_is_busy(
    tmp_path: Path,
) -> None:
    """The rule itself: with one all_reduce in each segment, a rank alone could not get out."""
    group = RankGroup(ranks=2, quantum=QUANTUM)
    votes = [RankVote.attach(group.fileno(), rank) for rank in range(2)]
    with ranks_of(group.fileno(), 2, tmp_path / "store", Work(1, 10)) as ranks:
        for rank in ranks:
            rank.wait_for("step")
        for vote in votes:
            assert vote.agree(3, expected_epoch=vote.close_epoch)
        votes[1].close()
        assert group.grant(3) is GroupAnswer.NO_VOTE
        assert votes[1].agree(3, expected_epoch=votes[1].close_epoch)
        assert group.grant(3) is GroupAnswer.GRANTED
        votes[1].close()
        votes[0].close()
        for vote in votes:
            assert vote.wait_parked(timeout_ms=LONG_MS) is not None
        assert group.passed == ((1, 3), (1, 3))
        assert group.grant(3) is GroupAnswer.NO_VOTE


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + HANG_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


STATES = ["here", "step", "segment", "parked"]


@pytest.mark.parametrize("state", STATES)
def test_rank_that_is_killed_ends_the_group_and_parks_nobody(state: str, tmp_path: Path) -> None:
    group = RankGroup(ranks=3, quantum=QUANTUM)
    busy = threading.Event()
    if state in ("here", "step"):
        busy.set()
    with (
        ranks_of(group.fileno(), 3, tmp_path / "store", Work(50, 20)) as ranks,
        serving(group, busy=busy) as votes,
    ):
        for rank in ranks:
            rank.wait_for("here" if state == "here" else "step")
        if state in ("segment", "parked"):
            ranks[1].wait_for("segment", (2, 7))
        if state == "parked":
            busy.set()
            for vote in votes:
                vote.close()
                assert vote.wait_parked(timeout_ms=LONG_MS) is not None
        os.kill(ranks[1].pid, signal.SIGKILL)
        survivors = [log for log, _ in logs_of([ranks[0], ranks[2]])]
        wait_until(group.is_shut_down)  # A collective may fail before the leader looks.
        assert group.end is GroupEnd.RANK_DIED
        ends = {len(log.started) for log in survivors}
        for log in survivors:
            assert log.failed or log.told == "SHUT_DOWN"
        if state != "segment":
            assert ends == {len(survivors[0].started)}
            assert not any(log.failed for log in survivors)
        for vote in votes:
            assert vote.wait_parked(timeout_ms=LONG_MS) is not None


def test_ranks_stop_behind_the_same_segment_when_the_group_is_shut_down(tmp_path: Path) -> None:
    group = RankGroup(ranks=3, quantum=QUANTUM)
    with (
        ranks_of(group.fileno(), 3, tmp_path / "store", Work(500, 20)) as ranks,
        serving(group),
    ):
        ranks[0].wait_for("segment", (3, 5))
        group.shut_down()
        logs = [log for log, _ in logs_of(ranks)]
    assert [log.told for log in logs] == ["SHUT_DOWN"] * 3
    assert logs[0].started == logs[1].started == logs[2].started


@contextmanager
def leader_process(ranks: int) -> Iterator[tuple[multiprocessing.process.BaseProcess, int]]:
    """Run the leader and all servings in a process of their own; yields it and the group."""
    context = multiprocessing.get_context("forkserver")
    mine, theirs = context.Pipe()
    process = context.Process(target=lead, args=(theirs, ranks, QUANTUM))
    process.start()
    try:
        assert mine.poll(HANG_S)
        mine.recv()
        mine.send(os.getpid())
        fd = recv_handle(mine)
        yield process, fd
        os.close(fd)
    finally:
        process.kill()
        process.join()
        mine.close()


def freeze(pid: int) -> None:
    """Stop a process, and see it stopped."""
    os.kill(pid, signal.SIGSTOP)
    stat = Path(f"/proc/{pid}/stat")
    wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")


def test_killed_leader_ends_the_group_behind_one_segment_on_all_ranks(tmp_path: Path) -> None:
    with (
        leader_process(2) as (leader, fd),
        ranks_of(fd, 2, tmp_path / "store", Work(5000, 20)) as ranks,
    ):
        ranks[0].wait_for("segment", (2, 3))
        leader.kill()
        logs = [log for log, _ in logs_of(ranks)]
        assert [log.told for log in logs] == ["SHUT_DOWN"] * 2
        assert logs[0].started == logs[1].started
        with pytest.raises(Unavailable):
            RankGate.attach(fd, 0)


def test_frozen_leader_stops_everything_within_a_quantum_until_it_goes_on(tmp_path: Path) -> None:
    with (
        leader_process(2) as (leader, fd),
        ranks_of(fd, 2, tmp_path / "store", Work(5000, 20)) as ranks,
    ):
        votes = [RankVote.attach(fd, rank) for rank in range(2)]
        ranks[0].wait_for("segment", (2, 3))
        assert leader.pid is not None
        freeze(leader.pid)
        may_start = {vote.passed[0] * 20 + vote.passed[1] + QUANTUM for vote in votes}
        for vote in votes:
            assert vote.wait_parked(timeout_ms=LONG_MS) is not None
        stopped = [vote.passed for vote in votes]
        assert stopped[0] == stopped[1]
        assert stopped[0][0] * 20 + stopped[0][1] <= max(may_start)
        assert not votes[0].is_shut_down()
        os.kill(leader.pid, signal.SIGCONT)
        while votes[0].passed <= stopped[0]:
            ranks[0].hear()
        assert not votes[0].is_shut_down()


def test_stopped_serving_of_one_rank_stops_all_ranks_within_its_vote(tmp_path: Path) -> None:
    group = RankGroup(ranks=2, quantum=QUANTUM)
    votes = [RankVote.attach(group.fileno(), rank) for rank in range(2)]
    voter = Voter(votes[0], lambda left: QUANTUM, quantum=QUANTUM, poll_ms=5)
    leader = RankLeader(group, poll_ms=5)
    with ranks_of(group.fileno(), 2, tmp_path / "store", Work(1, 20)) as ranks:
        voter.start()
        leader.start()
        for rank in ranks:
            rank.wait_for("step")
        # Rank 1's serving votes twice, and is never heard of again.
        assert votes[1].agree(QUANTUM, expected_epoch=votes[1].close_epoch)
        ranks[0].wait_for("segment", (1, QUANTUM))
        wait_until(lambda: votes[1].passed == (1, QUANTUM))
        assert votes[1].agree(2, expected_epoch=votes[1].close_epoch)
        ranks[0].wait_for("segment", (1, QUANTUM + 2))
        for vote in votes:
            assert vote.wait_parked(timeout_ms=LONG_MS) is not None
        assert group.passed == ((1, QUANTUM + 2), (1, QUANTUM + 2))
        voter.stop()
        leader.stop()


def test_waiting_rank_lets_other_python_threads_run() -> None:
    group = RankGroup(ranks=1, quantum=2)
    gate = rank_gate(group.fileno(), 0)
    vote = RankVote.attach(group.fileno(), 0)
    told: list[Verdict] = []

    def borrow() -> None:
        gate.begin_step()
        told.append(gate.pass_(timeout_ms=LONG_MS))

    borrower = threading.Thread(target=borrow)
    borrower.start()
    wait_until(vote.is_in_step)  # needs the GIL that the waiting thread must have given up
    assert vote.agree(1, expected_epoch=0)
    assert group.grant(1) is GroupAnswer.GRANTED
    borrower.join()
    assert told == [Verdict.PASSED]
    assert vote.wait_parked(timeout_ms=1) is None
    gate.leave()
    assert vote.wait_parked(timeout_ms=LONG_MS) is not None
    assert vote.recent_segment_ms(share=1.0) > 0


class StreamThatLags:
    """A stream of which the first wait times out."""

    def __init__(self) -> None:
        self.waits = 0

    def wait(self, *, timeout_ms: float) -> None:
        self.waits += 1
        if self.waits == 1:
            raise DeadlineExceeded(f"not within {timeout_ms} ms")


def test_rank_on_a_gpu_ends_its_segment_when_its_stream_has() -> None:
    group = RankGroup(ranks=1, quantum=2)
    vote = RankVote.attach(group.fileno(), 0)
    gate = rank_gate(group.fileno(), 0, stream=StreamThatLags())
    assert isinstance(gate, SynchronousGate)
    gate.begin_step()
    assert vote.agree(2, expected_epoch=0)
    assert group.grant(2) is GroupAnswer.GRANTED
    assert gate.pass_(timeout_ms=1) is Verdict.TIMED_OUT
    assert vote.passed == (1, 0)
    assert gate.pass_(timeout_ms=1) is Verdict.PASSED
    assert gate.settle(timeout_ms=1) is Verdict.PASSED
    gate.end_step()


def test_voter_asks_at_half_its_vote_and_not_outside_a_step() -> None:
    group = RankGroup(ranks=1, quantum=8)
    gate = rank_gate(group.fileno(), 0)
    vote = RankVote.attach(group.fileno(), 0)
    asked: list[int] = []

    def bears(left: int) -> int:
        asked.append(left)
        return 100

    voter = Voter(vote, bears, quantum=4, poll_ms=1)
    assert not voter.look()
    gate.begin_step()
    assert voter.look()
    assert vote.vote_left == 4
    assert not voter.look()
    assert group.grant(8) is GroupAnswer.GRANTED
    for _ in range(2):
        assert gate.pass_(timeout_ms=1) is Verdict.PASSED
    assert voter.look()
    assert asked == [0, 2]
    voter.stop()
    assert not vote.agrees()


def test_close_while_a_voter_decides_wins() -> None:
    group = RankGroup(ranks=1, quantum=8)
    gate = rank_gate(group.fileno(), 0)
    vote = RankVote.attach(group.fileno(), 0)
    gate.begin_step()

    def bears(left: int) -> int:
        vote.close()
        return 4

    assert not Voter(vote, bears, quantum=4, poll_ms=1).look()
    assert group.grant(1) is GroupAnswer.NO_VOTE


def test_bad_groups_ranks_and_voters_are_refused(tmp_path: Path) -> None:
    group = RankGroup(ranks=2, quantum=4)
    with pytest.raises(InvalidArgument, match="no rank 2 in a group of 2"):
        RankGate.attach(group.fileno(), 2)
    first = RankGate.attach(group.fileno(), 0)
    with pytest.raises(InvalidArgument, match="rank 0 of the group is taken"):
        RankGate.attach(group.fileno(), 0)
    with (tmp_path / "file").open("wb") as file, pytest.raises(InvalidArgument, match="not a rank"):
        RankVote.attach(file.fileno(), 0)
    with pytest.raises(InvalidArgument, match="not open"):
        RankVote.attach(10_000, 0)
    with pytest.raises(InvalidArgument, match="ranks is 65"):
        RankGroup(ranks=65, quantum=4)
    with pytest.raises(InvalidArgument, match="quantum"):
        RankGroup(ranks=2, quantum=0)
    with pytest.raises(InvalidArgument, match="poll_ms"):
        RankLeader(group, poll_ms=0)
    vote = RankVote.attach(group.fileno(), 0)
    with pytest.raises(InvalidArgument, match="quantum"):
        Voter(vote, lambda left: 1, quantum=0, poll_ms=1)
    first.begin_step()
    with pytest.raises(InvalidArgument, match="timeout_ms"):
        first.pass_(timeout_ms=-1)
    del first
    assert group.end is GroupEnd.RANK_LEFT
    with pytest.raises(Unavailable, match="ended"):
        RankGate.attach(group.fileno(), 1)
