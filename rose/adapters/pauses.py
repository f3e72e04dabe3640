"""Pauses of the service: each has an owner and ends at the latest with its lease."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from rose.errors import DeadlineExceeded, Unavailable
from rose.scheduler.elastic import ElasticRolloutScheduler

_LOG: Final = logging.getLogger(__name__)


class PauseMode(Enum):
    """Treatment of sequences in flight during a pause.

    KEEP: running turns are recalled, and continue after the pause.
    WAIT: running turns run to their end.
    ABORT: sequences end with their tokens so far.
    """

    KEEP = "keep"
    WAIT = "wait"
    ABORT = "abort"


class PauseOvertaken(Unavailable):
    """A pause was ended before the service was quiet."""


@dataclass(eq=False, slots=True)
class Pause:
    """A pause.

    Args:
        name: unique name, by which this pause can be ended.
        owner: name of the client that pauses; None if it gave none.
        ended: reason of the end, once the pause has ended.
        alarm: end of the lease; None while the owner still waits for the pause to begin.
    """

    name: str
    owner: str | None
    ended: asyncio.Future[str] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    alarm: asyncio.TimerHandle | None = None


class Pauses:
    """The pauses that hold. The scheduler runs turns again when none is left.

    Args:
        scheduler: scheduler that is paused.
        later: function that runs a coroutine to its end.
    """

    def __init__(
        self,
        scheduler: ElasticRolloutScheduler,
        later: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._scheduler = scheduler
        self._later = later
        self._pauses: list[Pause] = []
        self._count = 0

    def __len__(self) -> int:
        """Return the number of pauses that hold."""
        return len(self._pauses)

    def owners(self) -> list[str | None]:
        """Return the owners of the pauses that hold."""
        return [one.owner for one in self._pauses]

    async def begin(
        self, owner: str | None, *, is_recalling: bool, lease_s: float, patience_s: float
    ) -> str:
        """Pause, and return the pause's name once no turn runs.

        An owner has one pause: a further one replaces it.

        Args:
            owner: name of the client that pauses.
            is_recalling: whether running turns are recalled, and not run to their end.
            lease_s: time in seconds from the return to the end of the pause.
            patience_s: longest time in seconds for turns to end.

        Raises:
            DeadlineExceeded: a turn still runs; the pause holds.
            PauseOvertaken: the pause was ended meanwhile.
        """
        self._count += 1
        pause = Pause(f"pause-{self._count}", owner)
        before = [one for one in self._pauses if owner is not None and one.owner == owner]
        self._pauses.append(pause)
        for one in before:
            self._drop(one, "its owner paused again")
        try:
            # The scheduler has the pause before anything else runs, so a later resume follows it.
            await self._scheduler.pause(is_recalling=is_recalling)
            quiet = asyncio.ensure_future(self._scheduler.quiet())
            either: set[asyncio.Future[Any]] = {quiet, pause.ended}
            try:
                await asyncio.wait(either, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
                is_quiet = quiet.done() and quiet.result() is None
            finally:
                quiet.cancel()
        finally:
            if not pause.ended.done():
                loop = asyncio.get_running_loop()
                pause.alarm = loop.call_later(lease_s, self._expire, pause, lease_s)
        if pause.ended.done():
            raise PauseOvertaken(
                f"the pause has ended before all turns did: {pause.ended.result()}"
            )
        if not is_quiet:
            raise DeadlineExceeded(
                f"workers must return their turns within {patience_s} s; the service stays paused"
            )
        return pause.name

    async def end(self, owner: str | None) -> None:
        """End the pauses of an owner, or the pause of this name; None: those without an owner.

        Without such a pause this does nothing.
        """
        ending = [one for one in self._pauses if owner in (one.owner, one.name)]
        for one in ending:
            self._drop(one, "another request resumed the service")
        if ending and not self._pauses:
            await self._scheduler.resume()

    def _expire(self, pause: Pause, lease_s: float) -> None:
        whose = "without an owner" if pause.owner is None else f"of {pause.owner!r}"
        _LOG.warning("the pause %s was not ended within %s s, and ends now", whose, lease_s)
        self._drop(pause, "its lease has ended")
        if not self._pauses:
            self._later(self._scheduler.resume())

    def _drop(self, pause: Pause, reason: str) -> None:
        self._pauses.remove(pause)
        pause.ended.set_result(reason)
        if pause.alarm is not None:
            pause.alarm.cancel()

    def close(self) -> None:
        """End all pauses, because the service is closed."""
        for one in tuple(self._pauses):
            self._drop(one, "the service was closed")
