"""The time of a core: it goes on where it was, whatever a clock does."""

from typing import Final

from rose.clock import Clock

# Far from the end of 64 bits, so that every deadline behind it fits them.
_NOW_MAX: Final = 1 << 60


class CoreTime:
    """A clock's time, never before what was said already, by this object or by an earlier life.

    A machine that was started anew counts from 0, a checkpoint may come from another machine, and
    a clock that goes back must neither stop a scheduler (a core refuses to go back in time) nor
    hold it up until the clock is where it was: time goes on from there at once.

    Args:
        clock: where time comes from.
        not_before_ns: the last time of an earlier life.
    """

    def __init__(self, clock: Clock, *, not_before_ns: int = 0) -> None:
        self._clock = clock
        self._seen_ns = clock.now_ns()
        self._ahead_ns = max(0, not_before_ns - self._seen_ns)

    def now_ns(self) -> int:
        """Return the time."""
        seen_ns = self._clock.now_ns()
        self._ahead_ns += max(0, self._seen_ns - seen_ns)
        self._seen_ns = seen_ns
        return min(seen_ns + self._ahead_ns, _NOW_MAX)
