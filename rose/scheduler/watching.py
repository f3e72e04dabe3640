"""Who sees what the asyncio front does: metrics, spans, tests. Nothing depends on them."""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from rose.scheduler.front_events import Entry
from rose.scheduler.order import Order
from rose.scheduler.rollouts import Outcome, Rollouts
from rose.scheduler.worker import TurnRequest, WorkerKind

_LOG: Final = logging.getLogger(__name__)


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
    """Shows everything to several. One that fails sees nothing more, and the log says why."""

    def __init__(self, watches: Sequence[FrontWatch]) -> None:
        self._watches = list(watches)

    def begin(self, request: TurnRequest, worker: int, kind: WorkerKind) -> None:
        """Show it to all."""
        self._show(lambda watch: watch.begin(request, worker, kind))

    def add(self, trajectory: int, tokens: int) -> None:
        """Show it to all."""
        self._show(lambda watch: watch.add(trajectory, tokens))

    def end(self, trajectory: int, worker: int) -> None:
        """Show it to all."""
        self._show(lambda watch: watch.end(trajectory, worker))

    def end_all(self, worker: int) -> None:
        """Show it to all."""
        self._show(lambda watch: watch.end_all(worker))

    def opened(self, rollouts: Rollouts) -> None:
        """Show it to all."""
        self._show(lambda watch: watch.opened(rollouts))

    def heard(self, entry: Entry) -> None:
        """Show it to all."""
        self._show(lambda watch: watch.heard(entry))

    def stepped(self, outcomes: Sequence[Outcome], seconds: float) -> None:
        """Show it to all."""
        self._show(lambda watch: watch.stepped(outcomes, seconds))

    def close(self) -> None:
        """Tell all."""
        self._show(lambda watch: watch.close())

    def _show(self, it: Callable[[FrontWatch], None]) -> None:
        for watch in tuple(self._watches):
            order = Order()
            with order:
                it(watch)
            if order.error is not None:
                self._watches.remove(watch)
                kind = type(watch).__name__
                _LOG.error("%s has failed, and sees nothing more", kind, exc_info=order.error)
