"""Random bits in the shared page of a rank group, while ranks, votes and leader run."""

import mmap
import os
import random
import threading
import time

import pytest

from rose._core import RankGate, RankGroup, RankLeader, RankVote, Verdict
from rose.compute.ranks import Voter

QUANTUM = 4
HANG_S = 60.0
# Offsets and sizes of csrc/compute/rank_page.h: the group's word, then the words of rank 0.
FIELDS = {
    "grant": (0, 8),
    "bell": (8, 4),
    "demand": (12, 4),
    "aborted_before": (16, 8),
    "ranks": (24, 4),
    "quantum": (28, 4),
    "leader": (32, 16),
    "end": (48, 4),
    "magic": (52, 4),
    "vote": (64, 8),
    "step": (72, 8),
    "passed": (80, 4),
    "running": (84, 4),
    "progress": (88, 4),
    "waiters": (92, 4),
    "present": (96, 4),
}


class Rank(threading.Thread):
    """Runs steps of ten segments until it is told to stop; a step ends when it is told nothing."""

    def __init__(self, gate: RankGate) -> None:
        super().__init__()
        self.gate = gate
        self.told: Verdict | None = None
        self.count = 0

    def run(self) -> None:
        while self.told is not Verdict.SHUT_DOWN:
            self.gate.begin_step()
            for _ in range(10):
                self.told = self.gate.pass_(timeout_ms=5)
                if self.told is not Verdict.PASSED:
                    break
                self.count += 1
            self.gate.end_step()


@pytest.mark.parametrize("field", FIELDS)
def test_ranks_end_when_they_are_told_to_whatever_the_page_holds(field: str) -> None:
    chance = random.Random(field)
    at, size = FIELDS[field]
    group = RankGroup(ranks=2, quantum=QUANTUM)
    votes = [RankVote.attach(group.fileno(), rank) for rank in range(2)]
    voters = [Voter(vote, lambda left: QUANTUM, quantum=QUANTUM, poll_ms=1) for vote in votes]
    ranks = [Rank(RankGate.attach(group.fileno(), rank)) for rank in range(2)]
    leader = RankLeader(group, poll_ms=1)
    for part in (leader, *voters, *ranks):
        part.start()
    size_bytes = os.fstat(group.fileno()).st_size
    with mmap.mmap(group.fileno(), size_bytes) as page:
        for _ in range(20):
            wild = int.from_bytes(page[at : at + size], "little")
            wild ^= chance.getrandbits(8 * size) & chance.getrandbits(8 * size)
            page[at : at + size] = wild.to_bytes(size, "little")
            time.sleep(chance.random() * 0.002)
            for vote in votes:
                vote.close()
                vote.wait_parked(timeout_ms=1)
        group.shut_down()
        for rank in ranks:
            rank.join(HANG_S)
            assert not rank.is_alive()
            assert rank.told is Verdict.SHUT_DOWN
        for voter in voters:
            voter.stop()
        leader.stop()
        assert not leader.is_running


def test_ranks_that_run_do_start_segments() -> None:
    """The control of the test above: without wild bits there is something to stop."""
    group = RankGroup(ranks=2, quantum=QUANTUM)
    votes = [RankVote.attach(group.fileno(), rank) for rank in range(2)]
    voters = [Voter(vote, lambda left: QUANTUM, quantum=QUANTUM, poll_ms=1) for vote in votes]
    ranks = [Rank(RankGate.attach(group.fileno(), rank)) for rank in range(2)]
    leader = RankLeader(group, poll_ms=1)
    for part in (leader, *voters, *ranks):
        part.start()
    deadline_s = time.monotonic() + HANG_S
    while min(rank.count for rank in ranks) < 10:
        assert time.monotonic() < deadline_s
        time.sleep(0.001)
    group.shut_down()
    for part in ranks:
        part.join(HANG_S)
        assert not part.is_alive()
    for voter in voters:
        voter.stop()
    leader.stop()
