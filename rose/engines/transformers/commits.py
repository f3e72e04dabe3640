"""Commits of fresh weights, slice by slice, between two steps of an engine."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

from rose.clock import Clock
from rose.transfer.receiving.commit import CommitState
from rose.units import NS_PER_MS

# What becomes of requests under way when the weights change: they keep their KV, so that a request
# may be of several versions; their KV is computed again from all of their tokens, under the new
# weights; or they end as they are, to be asked for again by whoever wants them.
InFlight: TypeAlias = Literal["keep", "recompute", "abort"]
IN_FLIGHT: Final = ("keep", "recompute", "abort")


class Slices(Protocol):
    """A commit as an engine sees it; `rose.transfer.receiving.commit.Commit` is one."""

    def step(self) -> bool:
        """Do one slice; False when it is over."""
        ...

    def abandon(self) -> object:
        """Go back to the version before, unless it is over."""
        ...

    @property
    def state(self) -> CommitState:
        """Where it stands."""
        ...


@dataclass(frozen=True, slots=True)
class Committed:
    """How a commit ended.

    Args:
        version: what the engine runs now.
        is_match: whether the new weights are the trainer's, and in use.
        is_quarantined: whether the weights are those of no version: no step runs on them.
        pause_ms: from the end of the last step, or the call if the engine was idle, to when steps
            may run again.
    """

    version: int
    is_match: bool
    is_quarantined: bool
    pause_ms: float


OnCommitted = Callable[[Committed], None]


@dataclass(frozen=True, slots=True)
class PendingCommit:
    """A commit that was asked for.

    Args:
        slices: the transaction.
        version: what the engine runs when it has gone well.
        on_done: told how it ended, in the loop thread.
        called_ns: when it was asked for.
    """

    slices: Slices
    version: int
    on_done: OnCommitted
    called_ns: int


class CommitQueue:
    """The commits of one engine, in the order they were asked for.

    Any thread may `add`; the others are for the loop thread, or for who has joined it.
    """

    def __init__(self, clock: Clock) -> None:
        """Start without any."""
        self._clock = clock
        self._lock = threading.Lock()  # Guards `_pending`; never held while a slice runs.
        self._pending: deque[PendingCommit] = deque()
        self._pause_began_ns = 0
        self.is_quarantined = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits or is half done."""
        return not self._pending

    @property
    def has_committed(self) -> bool:
        """Whether the first commit is over and its weights are in use."""
        return self._pending[0].slices.state is CommitState.COMMITTED

    def add(self, slices: Slices, *, version: int, on_done: OnCommitted) -> None:
        """Queue a commit."""
        with self._lock:
            self._pending.append(PendingCommit(slices, version, on_done, self._clock.now_ns()))

    def step_ended(self) -> None:
        """Note that a step of the engine has ended: a pause counts from here."""
        self._pause_began_ns = self._clock.now_ns()

    def advance(self) -> bool:
        """Run one slice of the first commit; False when that commit is over."""
        return self._pending[0].slices.step()

    def settle(self, version: int) -> tuple[PendingCommit, Committed]:
        """Take the first commit, which is over, out of the queue and say how it ended.

        Args:
            version: what the engine ran until now.
        """
        is_match = self.has_committed
        with self._lock:
            pending = self._pending.popleft()
        # Only a commit that goes well ends it: going back leads to what was there before.
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
        """Bring the first commit back to the version before it; the queue must not be empty."""
        self._pending[0].slices.abandon()
