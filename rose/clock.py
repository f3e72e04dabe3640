"""Time sources. All other modules take a `Clock`, so that policies can run in virtual time."""

import time
from typing import Final, Protocol

from rose.units import NS_PER_MS

# 2025-01-01 in milliseconds since 1970. Default numbers of versions count from it, to stay short.
VERSION_EPOCH_MS: Final = 1_735_689_600_000


class Clock(Protocol):
    """A source of nanoseconds that never goes back."""

    def now_ns(self) -> int:
        """Return the time in nanoseconds since an arbitrary start."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait until `seconds` have passed on this clock."""
        ...


class BootClock:
    """CLOCK_BOOTTIME, the clock of the C++ core, which includes suspended time."""

    def now_ns(self) -> int:
        """Return nanoseconds since boot."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`."""
        time.sleep(seconds)


def unix_ms() -> int:
    """Return milliseconds since 1970; the value may go back."""
    return time.time_ns() // NS_PER_MS


def unix_s() -> int:
    """Return seconds since 1970, for messages that carry a date; the value may go back."""
    return int(time.time())
