"""The time of a core: it goes on where it was, whatever a clock does."""

from typing import Final

from rose.clock import Clock

# Far from the end of 64 bits, so that every deadline behind it fits them.
_NOW_MAX: Final = 1 << 60


class CoreTime:
    """A clock's time, never before what was said already, by this object or by an earlier life.

    A machine that was started anew counts from 0, a checkpoint may come from another machine, and
    a clock that goes back must not stop a scheduler: a core refuses to go back in time.
    """

    def __init__(self, clock: Clock, *, not_before_ns: int = 0) -> None:
        self._clock = clock
        self._last_ns = not_before_ns
        self._ahead_ns = max(0, not_before_ns - clock.now_ns())

    def now_ns(self) -> int:
        """Return the time."""
        self._last_ns = min(max(self._last_ns, self._clock.now_ns() + self._ahead_ns), _NOW_MAX)
        return self._last_ns
