"""Turns: one caller at a time, and no more who wait than is good."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rose.errors import DeadlineExceeded, Unavailable


class Turns:
    """Lets so many callers in, and of those one at a time to what stands one only.

    Args:
        callers_max: that are in at a time; another one is refused at once.
        patience_s: how long each waits for its turn.
    """

    def __init__(self, callers_max: int, patience_s: float) -> None:
        self.patience_s = patience_s
        self._room = threading.Semaphore(callers_max)
        self._one = threading.Lock()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Be one of the callers.

        Raises:
            Unavailable: there are as many as may be.
        """
        if not self._room.acquire(blocking=False):
            raise Unavailable("too many wait for upstream at a time")
        try:
            yield
        finally:
            self._room.release()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Be the one.

        Raises:
            DeadlineExceeded: the turn did not come in time.
        """
        if not self._one.acquire(timeout=self.patience_s):
            raise DeadlineExceeded(f"upstream was busy with others for {self.patience_s} s")
        try:
            yield
        finally:
            self._one.release()
