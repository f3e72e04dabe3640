"""Observers of the asyncio driver, for reports and tests. Nothing depends on them."""

import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final

from rose.errors import sentence
from rose.scheduler.driver_events import Entry
from rose.scheduler.state import Outcome, RolloutsState
from rose.scheduler.worker import TurnRequest, WorkerKind, WorkerLost

_LOG: Final = logging.getLogger(__name__)


class ErrorGuard:
    """Catches and keeps any exception of foreign code, that is, of workers and observers.

    A worker that raises is lost; without this guard its exception would end the scheduler for all
    workers. An interrupt is not an error, and passes.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __enter__(self) -> None:
        """Do nothing: the guard acts at the exit."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Keep an exception, for the caller to check."""
        if isinstance(error, Exception):
            self.error = error
        return self.error is not None


def broken_worker(number: int, error: Exception) -> WorkerLost:
    """Return the event for a worker that raised an exception."""
    return WorkerLost(number, f"it is broken: {sentence(error)}")


class DriverWatch:
    """Observes all events and does nothing; subclasses override its methods.

    The driver's task calls the methods.
    """

    def begin(self, request: TurnRequest, worker: int, kind: WorkerKind) -> None:
        """A worker was asked for a turn, or for the rest of one."""

    def add(self, trajectory: int, tokens: int) -> None:
        """Tokens of a turn were accepted, possibly after `end` or `end_all` for its worker."""

    def end(self, trajectory: int, worker: int) -> None:
        """A worker reported the end of a turn; a faulty worker may never have had that turn."""

    def end_all(self, worker: int) -> None:
        """A worker is gone."""

    def opened(self, state: RolloutsState) -> None:
        """A scheduler process starts with this state."""

    def received(self, entry: Entry) -> None:
        """An entry was accepted, for the next step of the core."""

    def stepped(self, outcomes: Sequence[Outcome]) -> None:
        """The core has stepped, with these outcomes."""

    def close(self) -> None:
        """No more calls follow."""


class Watches:
    """Calls several observers. An observer that fails is removed, and the failure is logged."""

    def __init__(self, watches: Sequence[DriverWatch] = ()) -> None:
        self._watches = list(watches)
        self._guard = ErrorGuard()

    def show(self, it: Callable[[DriverWatch], None]) -> None:
        """Call each observer."""
        for watch in self._watches:
            guard = self._guard
            with guard:
                it(watch)
            if guard.error is not None:
                self._guard = ErrorGuard()
                self._watches = [one for one in self._watches if one is not watch]
                kind = type(watch).__name__
                _LOG.error("observer %s failed and was removed", kind, exc_info=guard.error)
