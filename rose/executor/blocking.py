"""Calls of serving's that wait for the whole device, the parked borrower included."""

from types import TracebackType

from rose._core import Watchdog
from rose.executor.safety import Safety


class Blocking:
    """A declaration: what runs in the `with` block may wait for everything on the device.

    A free, a capture, the first launch of a kernel, a synchronise. The borrower's step is on the
    device too, and stops at its gates as long as serving is busy: neither would ever end. While
    such a call is declared, a parked step is let go on, one segment for each `WATCHDOG_MS`
    in which nothing moved. Elsewhere never. Any thread; declarations may overlap.
    """

    __slots__ = ("_is_entered", "_safety", "_watchdog")

    def __init__(self, watchdog: Watchdog, safety: Safety) -> None:
        """Made by `ServingLane.blocking`."""
        self._watchdog = watchdog
        self._safety = safety
        self._is_entered = False

    def __enter__(self) -> None:
        """Begin the call."""
        with self._safety:
            self._watchdog.enter()
            self._is_entered = True

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _failure: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """End it: from here on no segment is let through."""
        with self._safety:
            if self._is_entered:
                self._is_entered = False
                self._watchdog.leave()
