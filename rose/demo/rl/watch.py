"""Watches the trainer, whose versions become news, and sums up what the relay moved."""

import json
import threading
from collections import Counter
from collections.abc import Callable
from typing import Final

from rose.demo.rl.background import Background
from rose.demo.rl.messages import TrainerStatus
from rose.errors import DeadlineExceeded, Unavailable
from rose.scheduler.events import Consumed, VersionPublished

_EVERY_S: Final = 0.5

Ask = Callable[[], TrainerStatus]


class TrainerWatch(Background):
    """A thread that asks the trainer where it is.

    What is told and kept here goes on when another incarnation is followed. `stop` asks once more.

    Args:
        tell: takes VersionPublished and Consumed.

    Attributes:
        staleness: how many trajectories were so many versions old when they were learned from.
        stale: trajectories that were too old to learn from.
        passed_over: those for which a step had no room.
        version: the newest that was published.
        published: how many were, over all incarnations.
        known: trajectories that the trainer has, or had.
        sent_bytes: of weights, to all receivers.
        dense_bytes: what whole weights would have been instead.
    """

    def __init__(self, tell: Callable[[VersionPublished | Consumed], None]) -> None:
        super().__init__("rose-trainer-watch")
        self.staleness: Counter[int] = Counter()
        self.stale = 0
        self.passed_over = 0
        self.version = 0
        self.published = 0
        self.known = 0
        self.sent_bytes = 0
        self.dense_bytes = 0
        self._used = 0
        self._tell = tell
        # `_changed` guards the two below.
        self._ask: Ask | None = None
        self._last: TrainerStatus | None = None

    def follow(self, ask: Ask | None) -> None:
        """Ask another trainer from now on; None while there is none."""
        with self._changed:
            self._ask = ask
            self._last = None
            self._changed.notify_all()

    def _work(self) -> None:
        is_over = False
        while not is_over:
            with self._changed:
                self._changed.wait_for(lambda: self._is_stopping, timeout=_EVERY_S)
                ask, is_over = self._ask, self._is_stopping
            if ask is not None:
                self._look(ask)

    def _look(self, ask: Ask) -> None:
        try:
            status = ask()
        except (Unavailable, DeadlineExceeded):
            return
        with self._changed:
            if ask is not self._ask:
                return
            before, self._last = self._last, status
        if status.version > self.version:
            self.version = status.version
            self._tell(VersionPublished(status.version))
        self._note(status, before)

    def _note(self, status: TrainerStatus, before: TrainerStatus | None) -> None:
        # Over all incarnations, but one that starts falls back to what its checkpoint had learned.
        used = status.consumed - status.waiting
        if used > self._used:
            self._tell(Consumed(used - self._used))
            self._used = used
        self.stale = status.dropped_stale
        self.known = status.consumed
        # Of this incarnation alone.
        seen = Counter(before.staleness) if before is not None else Counter[int]()
        self.staleness.update(Counter(status.staleness) - seen)
        self.passed_over += status.passed_over - (before.passed_over if before is not None else 0)
        self.published += status.versions - (before.versions if before is not None else 0)
        self.sent_bytes += status.bytes_sent - (before.bytes_sent if before is not None else 0)
        self.dense_bytes += status.dense_bytes - (before.dense_bytes if before is not None else 0)


class RelayedBytes:
    """Adds up what each incarnation of the relay says it moved; any thread.

    What one moved after it last said so is missing: at most half a second of it, if it is killed.
    """

    def __init__(self) -> None:
        """Start with nothing moved."""
        self._lock = threading.Lock()  # Guards all below.
        self._before = (0, 0)
        self._now = (0, 0)

    def begin(self) -> None:
        """Count a new incarnation from nothing."""
        with self._lock:
            self._before, self._now = self._sum(), (0, 0)

    def hear(self, line: str) -> None:
        """Take a line of the relay's; what is none of its figures says nothing."""
        try:
            said = json.loads(line)
        except ValueError:
            return
        match said:
            case {"crossing_bytes": int(crossing), "sent_bytes": int(sent)}:
                with self._lock:
                    self._now = crossing, sent

    @property
    def crossing_bytes(self) -> int:
        """Return what went from the trainer to the relay."""
        with self._lock:
            return self._sum()[0]

    @property
    def sent_bytes(self) -> int:
        """Return what went from the relay to the workers."""
        with self._lock:
            return self._sum()[1]

    def _sum(self) -> tuple[int, int]:
        return self._before[0] + self._now[0], self._before[1] + self._now[1]
