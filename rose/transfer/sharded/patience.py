"""Waits for other ranks, which are logged after some seconds."""

import logging
from typing import Final

from rose.clock import Clock
from rose.errors import DeadlineExceeded
from rose.units import NS_PER_S

_LOG: Final = logging.getLogger(__name__)
# A wait is logged after the first time, and then at the interval of the second, in seconds.
FIRST_S: Final = 5.0
AGAIN_S: Final = 30.0


class Patience:
    """One wait. One thread uses it.

    Args:
        who: subject of the messages, such as "rank 1 of the trainer".
        within_s: longest wait, in seconds.
        clock: clock of the wait.
    """

    def __init__(self, who: str, within_s: float, *, clock: Clock) -> None:
        self._who, self._within_s, self._clock = who, within_s, clock
        self._start_ns = clock.now_ns()
        self._log_at_s = FIRST_S

    def wait_for(self, what: str) -> None:
        """Note that the wait goes on.

        Raises:
            DeadlineExceeded: it has taken too long.
        """
        waited_s = (self._clock.now_ns() - self._start_ns) / NS_PER_S
        if waited_s >= self._within_s:
            raise DeadlineExceeded(f"{self._who} waited {waited_s:.0f} s for {what}")
        if waited_s >= self._log_at_s:
            self._log_at_s = waited_s + AGAIN_S
            _LOG.warning("%s has waited %.0f s for %s", self._who, waited_s, what)
