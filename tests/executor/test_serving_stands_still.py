"""Serving's process is stopped for a while: that time is not counted against its borrower."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.executor.test_attached import BLOCKS_PER_SLAB, Child
from tests.executor.test_serving_dies import Serving
from tests.waiting import LONG_S, wait_for

STOP_S = 1.5
KNOBS = {"revoke_ms": 500.0, "lease_ttl_ms": 1000.0}
SLABS = 4


class Room:
    """Serving in one process, and a borrower in another that uses all of what it was lent."""

    def __init__(self, folder: Path) -> None:
        self.serving = Serving(str(folder / "device.sock"), "shared", **KNOBS)
        self.borrower = Child(self.serving.path)
        assert self.borrower.do("borrow", SLABS * BLOCKS_PER_SLAB) == SLABS * BLOCKS_PER_SLAB

    def stop(self, *processes: int) -> None:
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        time.sleep(STOP_S)
        for process in processes:
            os.kill(process, signal.SIGCONT)

    def lent(self) -> int:
        return len(self.borrower.do("lent"))

    def close(self) -> None:
        self.borrower.end()
        self.serving.kill()


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    made = Room(tmp_path)
    yield made
    made.close()


def in_a_step(room: Room) -> None:
    assert room.borrower.do("begin_step")
    room.borrower.do("go_on")  # from gate to gate, and serving opens none while it is stopped


def test_loans_outlive_a_stop_that_is_longer_than_their_ttl(room: Room) -> None:
    in_a_step(room)
    room.stop(room.serving.process.pid)
    time.sleep(1.2 * KNOBS["lease_ttl_ms"] / 1000)
    assert room.borrower.process.poll() is None
    assert room.lent() == SLABS


def test_loans_outlive_a_stop_of_both_processes(room: Room) -> None:
    room.stop(room.serving.process.pid, room.borrower.process.pid)
    time.sleep(1.2 * KNOBS["lease_ttl_ms"] / 1000)
    assert room.lent() == SLABS


def test_a_stop_within_a_revocation_leaves_the_borrower_its_time(room: Room) -> None:
    in_a_step(room)
    room.serving.process.stdin.write(f"{SLABS}\n")
    room.serving.process.stdin.flush()
    # The slabs are asked for, and the step that uses them was not told to end.
    os.waitid(os.P_PID, room.serving.process.pid, os.WSTOPPED)
    room.stop(room.serving.process.pid)
    assert room.borrower.do("end_step") == "aborted"
    wait_for(lambda: room.borrower.do("state")["held"] == 0)
    wait_for(lambda: room.serving.ledger().partitions()[1].held == 0)
    assert room.borrower.do("borrow", BLOCKS_PER_SLAB) in {0, BLOCKS_PER_SLAB}
    assert room.borrower.process.poll() is None


def test_a_borrower_that_is_late_after_a_stop_is_killed(room: Room) -> None:
    assert room.borrower.do("begin_step")  # It never comes to its gate.
    room.serving.process.stdin.write(f"{SLABS}\n")
    room.serving.process.stdin.flush()
    os.waitid(os.P_PID, room.serving.process.pid, os.WSTOPPED)
    room.stop(room.serving.process.pid)
    assert room.borrower.process.wait(LONG_S) == -signal.SIGKILL
