"""The coordinator of a replica at work: a thread that minds the time and tells the ranks."""

import threading
from collections.abc import Callable
from typing import Final

from rose.clock import BootClock, Clock
from rose.closing import Closing
from rose.errors import sentence
from rose.thread import Thread
from rose.transfer.replicas.messages import Order, Word
from rose.transfer.replicas.replica import APPLY_S, ReplicaCommit, ReplicaState
from rose.transfer.version import Version

TICK_S: Final = 0.05

Tell = Callable[[Order], None]


class ReplicaHost(Closing):
    """Coordinates the ranks of one replica; lives in the process of its rank 0.

    Any thread may call; the lock guards the machine and who is there. Ranks are told by its own
    thread, without the lock: when the order is another, and again with every tick.

    Args:
        ranks: how many there are.
        number: one that no coordinator of this replica had before: random, say.
        apply_s: how long all ranks may take for a version.
        tick_s: how often they are told where they are to be.
        clock: where time comes from.
    """

    def __init__(
        self,
        ranks: int,
        number: int,
        *,
        apply_s: float = APPLY_S,
        tick_s: float = TICK_S,
        clock: Clock | None = None,
    ) -> None:
        self.number = number
        self._clock = clock or BootClock()
        self._tick_s = tick_s
        self._lock = threading.Lock()
        self._machine = ReplicaCommit(ranks, number, apply_s=apply_s)
        self._there: dict[int, tuple[int, Tell]] = {}
        self._bell = threading.Event()
        self._stop = threading.Event()
        self._thread = Thread(self._run, name="rose-replica", on_failure=self._broke)
        self._thread.start()

    @property
    def state(self) -> ReplicaState:
        """Return where the replica is."""
        with self._lock:
            return self._machine.state

    @property
    def version(self) -> Version | None:
        """Return what all ranks are in use at; None while they are not."""
        with self._lock:
            return self._machine.version

    def join(self, rank: int, incarnation: int, tell: Tell) -> None:
        """Take a rank in.

        Args:
            rank: its place; one that was there before is gone.
            incarnation: a number that no process of this rank had before.
            tell: takes orders, from the host's thread; must not wait long.

        Raises:
            InvalidArgument: the replica has no such rank.
        """
        with self._lock:
            self._machine.joined(rank, incarnation, self._clock.now_ns())
            self._there[rank] = incarnation, tell
        self._bell.set()

    def leave(self, rank: int, incarnation: int) -> None:
        """Note that a rank is gone."""
        with self._lock:
            self._machine.lost(rank, incarnation, self._clock.now_ns())
            if rank in self._there and self._there[rank][0] == incarnation:
                del self._there[rank]
        self._bell.set()

    def hear(self, word: Word) -> None:
        """Take what a rank says."""
        with self._lock:
            before = self._machine.order
            self._machine.heard(word, self._clock.now_ns())
            is_news = self._machine.order != before
        if is_news:
            self._bell.set()

    def _broke(self, _failure: BaseException) -> None:
        """Order nothing more, and take nobody in: ranks keep to their own deadlines."""
        with self._lock:
            self._there.clear()

    @property
    def failure(self) -> str | None:
        """Return what ended the coordination, one sentence; None while it goes on."""
        return None if self._thread.failure is None else sentence(self._thread.failure)

    def close(self) -> None:
        """Stop and join the thread; ranks find their coordinator gone."""
        self._stop.set()
        self._bell.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._bell.wait(self._tick_s)
            self._bell.clear()
            with self._lock:
                self._machine.tick(self._clock.now_ns())
                order, there = self._machine.order, [tell for _, tell in self._there.values()]
            for tell in there:
                tell(order)
