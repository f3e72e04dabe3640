"""Who sees what the asyncio front does: metrics, spans, tests. Nothing depends on them."""

from collections.abc import Sequence

from rose.scheduler.front_events import Entry
from rose.scheduler.rollouts import Outcome, Rollouts
from rose.scheduler.worker import TurnRequest, WorkerKind


class FrontWatch:
    """Sees everything and does nothing; subclasses do. One thread: that of the front's task."""

    def begin(self, request: TurnRequest, worker: int, kind: WorkerKind) -> None:
        """A worker was asked for a turn, or for the rest of one."""

    def add(self, trajectory: int, tokens: int) -> None:
        """Tokens of a turn were taken; they may come after the end of its part."""

    def end(self, trajectory: int, worker: int) -> None:
        """A worker says that a turn ended there; it may have none of it."""

    def end_all(self, worker: int) -> None:
        """A worker is gone."""

    def opened(self, rollouts: Rollouts) -> None:
        """A life of the scheduler begins with these."""

    def heard(self, entry: Entry) -> None:
        """Something was taken in; the core steps next."""

    def stepped(self, outcomes: Sequence[Outcome], seconds: float) -> None:
        """The core has stepped, and this came of it after so many seconds."""

    def close(self) -> None:
        """Nothing more will be seen."""


class Watches(FrontWatch):
    """Shows everything to several."""

    def __init__(self, watches: Sequence[FrontWatch]) -> None:
        self._watches = tuple(watches)

    def begin(self, request: TurnRequest, worker: int, kind: WorkerKind) -> None:
        """Show it to all."""
        for watch in self._watches:
            watch.begin(request, worker, kind)

    def add(self, trajectory: int, tokens: int) -> None:
        """Show it to all."""
        for watch in self._watches:
            watch.add(trajectory, tokens)

    def end(self, trajectory: int, worker: int) -> None:
        """Show it to all."""
        for watch in self._watches:
            watch.end(trajectory, worker)

    def end_all(self, worker: int) -> None:
        """Show it to all."""
        for watch in self._watches:
            watch.end_all(worker)

    def opened(self, rollouts: Rollouts) -> None:
        """Show it to all."""
        for watch in self._watches:
            watch.opened(rollouts)

    def heard(self, entry: Entry) -> None:
        """Show it to all."""
        for watch in self._watches:
            watch.heard(entry)

    def stepped(self, outcomes: Sequence[Outcome], seconds: float) -> None:
        """Show it to all."""
        for watch in self._watches:
            watch.stepped(outcomes, seconds)

    def close(self) -> None:
        """Tell all."""
        for watch in self._watches:
            watch.close()
