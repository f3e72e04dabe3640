"""Where time comes from. Everything above takes a `Clock`, so policies can run in virtual time."""

import time
from typing import Protocol


class Clock(Protocol):
    """A source of nanoseconds that never goes back."""

    def now_ns(self) -> int:
        """Return the time in nanoseconds since an arbitrary start."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass."""
        ...


class BootClock:
    """CLOCK_BOOTTIME, the clock of the C++ core: it counts on while the machine sleeps."""

    def now_ns(self) -> int:
        """Return nanoseconds since the machine started."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`."""
        time.sleep(seconds)
