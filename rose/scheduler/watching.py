"""Who sees what the asyncio front does: reports, spans, tests. Nothing depends on them."""

import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final

from rose.scheduler.front_events import Entry
from rose.scheduler.state import Outcome, RolloutsState
from rose.scheduler.worker import TurnRequest, WorkerKind

_LOG: Final = logging.getLogger(__name__)


class Order:
    """Keeps what somebody else's code raised, whatever it is: workers and watches are of any make.

    One broken worker is lost; without this it would take the scheduler of all others with it. An
    interrupt is not an error, and passes.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Keep an error; whoever gave the order looks at it."""
        if isinstance(error, Exception):
            self.error = error
        return self.error is not None


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

    def opened(self, state: RolloutsState) -> None:
        """A life of the scheduler begins with this."""

    def heard(self, entry: Entry) -> None:
        """Something was taken in; the core steps next."""

    def stepped(self, outcomes: Sequence[Outcome]) -> None:
        """The core has stepped, and this came of it."""

    def close(self) -> None:
        """Nothing more will be seen."""


class Watches:
    """Shows everything to several. One that fails sees nothing more, and the log says why."""

    def __init__(self, watches: Sequence[FrontWatch] = ()) -> None:
        self._watches = list(watches)

    def show(self, it: Callable[[FrontWatch], None]) -> None:
        """Call each with what there is to see."""
        for watch in tuple(self._watches):
            order = Order()
            with order:
                it(watch)
            if order.error is not None:
                self._watches.remove(watch)
                kind = type(watch).__name__
                _LOG.error("%s has failed, and sees nothing more", kind, exc_info=order.error)
