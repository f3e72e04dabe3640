"""A thread that does not end is not taken for one that has."""

import threading

import pytest

from rose.errors import DeadlineExceeded
from rose_lab.demo.rl import background
from rose_lab.demo.rl.background import Background
from tests.node.rig import no_thread_is_left
from tests.waiting import LONG_S


class Slow(Background):
    """Ends when it may, whatever it is told."""

    def __init__(self) -> None:
        super().__init__("rose-slow")
        self.may_end = threading.Event()

    def _work(self) -> None:
        assert self.may_end.wait(LONG_S)


def test_a_thread_that_does_not_end_is_reported_until_it_ends(monkeypatch) -> None:
    monkeypatch.setattr(background, "_JOIN_S", 0.01)
    with no_thread_is_left():
        slow = Slow()
        slow.start()
        for _ in range(2):
            with pytest.raises(DeadlineExceeded, match="'rose-slow' does not end"):
                slow.stop()
        monkeypatch.setattr(background, "_JOIN_S", LONG_S)
        slow.may_end.set()
        slow.stop()
    assert slow.error is None
