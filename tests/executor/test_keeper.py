"""The keeper: it tends now and then, at once when it is rung, and never once it was stopped."""

import threading

import pytest

from rose.executor.keeper import Keeper
from tests.waiting import LONG_S

NEVER_MS = 1e9


class RingsOnce:
    """A bell that rings right after it was first asked how often it had."""

    def __init__(self) -> None:
        self.rung = 0
        self.first = True
        self.change = threading.Condition()

    def listen(self, rings: int, *, timeout_ns: int) -> int:
        with self.change:
            self.change.wait_for(lambda: self.rung != rings, timeout_ns / 1e9)
            answer = self.rung
            self.rung += self.first
            self.first = False
            return answer

    def ring(self) -> None:
        with self.change:
            self.rung += 1
            self.change.notify_all()


def test_a_ring_is_noticed_though_the_thread_has_not_come_to_listen_yet() -> None:
    tended = threading.Event()
    keeper = Keeper(tended.set, RingsOnce(), every_ms=NEVER_MS, on_failure=pytest.fail)
    keeper.start()
    assert tended.wait(LONG_S)
    keeper.stop()


def test_a_stopped_keeper_ends_though_nothing_is_due_and_tends_no_more() -> None:
    bell = RingsOnce()
    bell.first = False
    tended: list[int] = []
    keeper = Keeper(lambda: tended.append(1), bell, every_ms=NEVER_MS, on_failure=pytest.fail)
    keeper.start()
    keeper.stop()
    bell.ring()
    assert tended == []
    assert not keeper._thread.is_alive()
