"""Serving's process is killed beside a living borrower; the next one starts from nothing.

A pool ends with the process that serves on it (ADR 0025): a borrower hears of the end, lets go of
the memory, and attaches anew. In between neither waits for the other.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rose._core import LedgerView, SlabState
from rose.executor.channel import Channel
from rose.executor.messages import AskLedger
from tests.executor.conftest import CALM, SLABS
from tests.executor.test_attached import BLOCKS_PER_SLAB, ROOT, Child
from tests.waiting import LONG_S, wait_for

SERVING, BORROWER = 0, 1


class Serving:
    """The program of `serving_program.py` at a socket; the sockets of the dead are replaced."""

    def __init__(self, path: str, isolation: str, **knobs) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.executor.serving_program", path),
                json.dumps({**CALM, "isolation": isolation, **knobs}),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(LONG_S), "serving's process says nothing"
        assert self.process.stdout.readline() == '"ready"\n'
        self.path = path

    def ledger(self) -> LedgerView:
        with Channel.connect(self.path, timeout_s=LONG_S) as channel:
            channel.send(AskLedger())
            answer, (descriptor,) = channel.receive(timeout_s=LONG_S)
        try:
            assert answer.pid == self.process.pid
            return LedgerView.open(descriptor)
        finally:
            os.close(descriptor)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


class Room:
    """One socket, one borrower, and one serving process after the other."""

    def __init__(self, folder: Path, isolation: str) -> None:
        self.path = str(folder / "device.sock")
        self.isolation = isolation
        self.serving = Serving(self.path, isolation)
        self.borrower = Child(self.path)

    def next_serving(self) -> None:
        self.serving = Serving(self.path, self.isolation)

    def hears_the_end(self) -> None:
        wait_for(lambda: self.borrower.do("state")["is_closed"])

    def goes_on(self) -> None:
        """The same process attaches to the next one, and every slab has the owner it should."""
        self.borrower.do("attach")
        blocks = 3 * BLOCKS_PER_SLAB
        assert self.borrower.do("borrow", blocks) == blocks
        self.borrower.do("fill", 7)
        ledger = self.serving.ledger()
        ledger.audit()
        records = ledger.records()
        assert Counter((one.owner, one.state) for one in records) == {
            (SERVING, SlabState.OWNED): 1,  # its reserve
            (BORROWER, SlabState.GRANTED): 3,
            (-1, SlabState.UNOWNED): SLABS - 4,
        }
        lent = [slab for slab, one in enumerate(records) if one.owner == BORROWER]
        assert self.borrower.do("slabs") == lent
        assert self.borrower.do("content") == [7]
        assert self.borrower.do("begin_step")

    def close(self) -> None:
        self.borrower.end()
        self.serving.kill()


@pytest.fixture
def room(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Room]:
    made = Room(tmp_path, getattr(request, "param", "shared"))
    yield made
    made.close()


def nothing(_borrower: Child) -> None:
    """It has borrowed nothing."""


def in_use(borrower: Child) -> None:
    borrower.do("borrow", 4 * BLOCKS_PER_SLAB)


def in_a_step(borrower: Child) -> None:
    in_use(borrower)
    assert borrower.do("begin_step")
    borrower.do("go_on")


@pytest.mark.parametrize(
    ("room", "begin"),
    [("shared", nothing), ("shared", in_use), ("shared", in_a_step), ("mapped", in_a_step)],
    indirect=["room"],
)
def test_borrower_lets_go_of_a_dead_pool_and_borrows_of_the_next(room: Room, begin) -> None:
    begin(room.borrower)
    room.serving.kill()
    room.hears_the_end()
    if begin is in_a_step:
        assert "closed" in room.borrower.do("end_step")
    assert room.borrower.do("let_go") == [0, 0]  # no memory of the pool, no descriptor
    room.next_serving()
    room.goes_on()


def test_next_serving_starts_although_the_borrower_holds_the_old_pool(room: Room) -> None:
    in_a_step(room.borrower)
    room.borrower.send(signal.SIGSTOP)
    room.serving.kill()
    room.next_serving()  # It answers, so it has its pool.
    assert {one.owner for one in room.serving.ledger().records()} == {SERVING, -1}
    room.borrower.send(signal.SIGCONT)
    room.hears_the_end()
    assert room.borrower.do("mapped") > 0
    room.goes_on()


def test_writes_to_a_dead_pool_reach_nobody(room: Room) -> None:
    in_use(room.borrower)
    room.serving.kill()
    room.next_serving()
    room.borrower.do("fill", 9)  # An engine that has not looked up yet.
    successor = Child(room.path)
    try:
        assert successor.do("borrow", BLOCKS_PER_SLAB) == BLOCKS_PER_SLAB
        assert 9 not in successor.do("content")
        assert room.borrower.do("content") == [9]
    finally:
        successor.end()
