"""Commits of fresh weights, slice by slice, between two steps of an engine."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from rose.clock import Clock
from rose.transfer.receiving.commit import Commit, CommitState
from rose.units import NS_PER_MS

# Handling of running requests when the weights change: keep their KV, so that a request may span
# versions; recompute KV from all their tokens under the new weights; or abort them, so that their
# owners can request them again.
InFlight: TypeAlias = Literal["keep", "recompute", "abort"]
IN_FLIGHT: Final = ("keep", "recompute", "abort")


@dataclass(frozen=True, slots=True)
class Committed:
    """Result of a commit.

    Args:
        version: current version of the engine.
        is_match: whether the new weights equal the trainer's, and are in use.
        is_quarantined: whether the weights match no version, so that no step runs on them.
        pause_ms: time without steps. It begins at the end of the last step or, if the engine was
            idle, at the call that queued the commit, and ends when steps may run again.
    """

    version: int
    is_match: bool
    is_quarantined: bool
    pause_ms: float


OnCommitted = Callable[[Committed], None]


@dataclass(frozen=True, slots=True)
class PendingCommit:
    """A queued commit.

    Args:
        slices: the commit itself, which runs in slices.
        version: version after a successful commit.
        on_done: called with the result, in the loop thread.
        called_ns: time of the call that queued the commit.
    """

    slices: Commit
    version: int
    on_done: OnCommitted
    called_ns: int


class CommitQueue:
    """The commits of one engine, in the order in which they were queued.

    Any thread may call `add`. All other methods are for the loop thread, or for a thread that has
    joined it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # Guards `_pending`; never held while a slice runs.
        self._pending: deque[PendingCommit] = deque()
        self._pause_began_ns = 0
        self.is_quarantined = False

    @property
    def is_empty(self) -> bool:
        """True if no commit is queued or in progress."""
        return not self._pending

    @property
    def has_committed(self) -> bool:
        """True if the first commit is over and its weights are in use."""
        return self._pending[0].slices.state is CommitState.COMMITTED

    def add(self, slices: Commit, *, version: int, on_done: OnCommitted) -> None:
        """Queue a commit."""
        with self._lock:
            self._pending.append(PendingCommit(slices, version, on_done, self._clock.now_ns()))

    def step_ended(self) -> None:
        """Record the end of an engine step, from which a pause is counted."""
        self._pause_began_ns = self._clock.now_ns()

    def advance(self) -> bool:
        """Run one slice of the first commit; return False when the commit is over."""
        return self._pending[0].slices.step()

    def settle(self, version: int) -> tuple[PendingCommit, Committed]:
        """Remove the first commit, which is over, and return its result.

        Args:
            version: version of the engine until now.
        """
        is_match = self.has_committed
        with self._lock:
            pending = self._pending.popleft()
        # Only a successful commit ends a quarantine: a rollback restores the quarantined weights.
        is_undefined = pending.slices.state is CommitState.QUARANTINED
        self.is_quarantined = not is_match and (is_undefined or self.is_quarantined)
        now_ns = self._clock.now_ns()
        began_ns = max(pending.called_ns, self._pause_began_ns)
        self._pause_began_ns = now_ns
        return pending, Committed(
            version=pending.version if is_match else version,
            is_match=is_match,
            is_quarantined=self.is_quarantined,
            pause_ms=(now_ns - began_ns) / NS_PER_MS,
        )

    def abandon(self) -> None:
        """Roll the first commit back; the queue must not be empty."""
        self._pending[0].slices.abandon()
