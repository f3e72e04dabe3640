"""Objects that own threads close once, whoever closes them, and only in their own process."""

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import rose
from rose import closing
from rose.closing import Closing, Once, weakly
from rose.errors import Unavailable, check
from rose.executor import CoServing
from rose.executor.keeper import Keeper
from rose.thread import ThreadPool
from rose.transfer.rounds import Rounds
from rose_lab.broker.lending import LendingLoop
from tests.executor.conftest import CALM, ROLLOUT_KV, SLAB, Rig
from tests.executor.serving_program import listening
from tests.waiting import LONG_S, wait_for

THREADS = 8


def from_eight_threads(work: Callable[[], object]) -> None:
    """Call `work` from eight threads at once; a hang or an exception fails."""
    barrier = threading.Barrier(THREADS)
    pool = ThreadPool(THREADS, "test")  # A hanging call does not keep the tests from ending.
    calls = [pool.submit(lambda: (barrier.wait(), work())) for _ in range(THREADS)]
    for call in calls:
        call.result(LONG_S)
    pool.shutdown()


def descriptors() -> set[int]:
    """Return the open descriptors of this process."""
    found = {int(one.name) for one in Path("/proc/self/fd").iterdir()}
    return {one for one in found if Path(f"/proc/self/fd/{one}").exists()}


class Slow(Closing):
    """Takes its time to close."""

    def __init__(self) -> None:
        self.once = Once()
        self.closed = 0

    def close(self) -> None:
        self.once(self._close)

    def _close(self) -> None:
        self.close()  # A part of an object may close the whole.
        threading.Event().wait(0.01)
        self.closed += 1


def test_every_close_returns_after_the_first_has_ended() -> None:
    slow = Slow()
    seen: list[int] = []
    from_eight_threads(lambda: (slow.close(), seen.append(slow.closed)))
    assert seen == [1] * THREADS


def test_a_close_that_fails_raises_once() -> None:
    once = Once()

    def fail() -> None:
        raise Unavailable("the disk is full")

    with pytest.raises(Unavailable):
        once(fail)
    once(fail)
    assert once.has_begun


def test_nothing_is_closed_in_a_forked_child(monkeypatch) -> None:
    slow = Slow()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        slow.close()
        with pytest.raises(Unavailable, match="a forked child cannot use a thing that its parent"):
            slow.once.check_open("a thing")
    assert slow.closed == 0
    slow.once.check_open("a thing")
    slow.close()
    assert slow.closed == 1
    with pytest.raises(Unavailable, match="a thing was closed"):
        slow.once.check_open("a thing")


class Running(Closing):
    """Has a thread, and a reference to itself."""

    def __init__(self, closed: threading.Event) -> None:
        self.itself = self
        self._once = Once()
        pause = threading.Event()
        rounds = Rounds(
            weakly(self._round), who="test", name="test", rest=lambda: pause.wait(0.01) and None
        )
        self._undo = ExitStack()
        self._undo.callback(closed.set)
        self._undo.callback(rounds.close)
        self._once.when_dropped(self, self._undo.close)
        rounds.start()

    def close(self) -> None:
        self._once(self._undo.close)

    def _round(self) -> None:
        check(self.itself is self, "it is here while its thread uses it")


def test_a_dropped_object_is_closed_by_a_thread_of_its_own() -> None:
    closed = threading.Event()
    gone = weakref.ref(Running(closed))

    def is_closed() -> bool:
        gc.collect()
        return closed.wait(0.01)

    wait_for(is_closed)
    assert gone() is None


def test_a_drop_after_a_close_does_nothing(monkeypatch) -> None:
    closed = threading.Event()
    running = Running(closed)
    running.close()
    closed.clear()
    gone = weakref.ref(running)
    monkeypatch.setattr(closing, "Thread", None)  # Starting one would fail.
    del running
    gc.collect()
    assert gone() is None
    assert not closed.is_set()


def test_eight_threads_close_weights_at_once() -> None:
    for _ in range(10):
        values = {"w": np.zeros(1 << 12, np.float32)}
        publisher = rose.publish(values)
        receiver = rose.receive(values, publisher.address, token=publisher.token)
        from_eight_threads(receiver.close)
        from_eight_threads(publisher.close)


def test_eight_threads_close_a_device_and_its_borrower_at_once(tmp_path: Path) -> None:
    with listening(tmp_path / "socket", **CALM):
        device = CoServing.attach(tmp_path / "socket")
        device.rollout(ROLLOUT_KV, limit_bytes=4 * SLAB)
        from_eight_threads(device.close)
    rig = Rig(tmp_path / "log")
    keeper: Keeper = rig.device._parts.keeper
    loop = LendingLoop([])
    loop.start()
    rig.borrow(8)
    from_eight_threads(keeper.stop)
    from_eight_threads(loop.close)
    from_eight_threads(rig.device.close)
    rig.close()


def test_eight_threads_close_a_listener_at_once(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "log", lends=False)
    listener = rig.device.listen(tmp_path / "socket")
    from_eight_threads(listener.close)
    assert not (tmp_path / "socket").exists()
    rig.close()


def test_a_thread_of_rounds_may_close_them_while_others_do() -> None:
    def end() -> None:
        rounds.close()

    rounds = Rounds(end, who="test", name="rose-test")
    rounds.start()
    from_eight_threads(rounds.close)
    wait_for(lambda: rounds.has_ended(1.0))


def test_no_descriptor_is_kept_by_a_program_that_a_child_executes(tmp_path: Path) -> None:
    before = descriptors()
    with listening(tmp_path / "socket", **CALM), CoServing.attach(tmp_path / "socket") as device:
        device.rollout(ROLLOUT_KV, limit_bytes=4 * SLAB)
        values = {"w": np.zeros(1 << 12, np.float32)}
        with (
            rose.publish(values) as publisher,
            rose.receive(values, publisher.address, token=publisher.token),
        ):
            opened = descriptors() - before
            assert len(opened) > 20
            assert [one for one in opened if os.get_inheritable(one)] == []


@pytest.mark.parametrize("does", ["nothing", "drop", "close", "use", "borrow"])
@pytest.mark.parametrize("what", ["device", "weights"])
def test_a_forked_child_changes_nothing_in_its_parent(what: str, does: str, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "tests.fork_program", what, does, str(tmp_path)]
    done = subprocess.run(program, capture_output=True, timeout=LONG_S, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    *refusals, status = done.stdout.splitlines()
    assert status == "0"
    is_refused = does in {"use", "borrow"}
    assert len(refusals) == is_refused
    assert all("a forked child cannot use " in one for one in refusals)
