"""The one place where rose catches all exceptions: serving continues whatever fails in rose."""

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType

from rose.errors import Unavailable


class Safety:
    """Stops lending, once, at the first failure inside rose.

    A context manager around all code of rose in the serving lane. It suppresses an `Exception` and
    passes it to `give_back`; `KeyboardInterrupt` and the like are raised. For any thread.
    """

    def __init__(self, give_back: Callable[[BaseException], None]) -> None:
        self._give_back = give_back
        self._lock = threading.Lock()  # Guards `_cause`.
        self._cause: BaseException | None = None
        # True in a forked child, which shares the device's memory and gate, and has no thread.
        self.is_forked = False
        os.register_at_fork(after_in_child=partial(_mark_forked, weakref.ref(self)))

    @property
    def cause(self) -> BaseException | None:
        """The first failure, if any."""
        return self._cause

    def report(self, failure: BaseException) -> None:
        """Give everything back because of `failure`; later failures have no effect."""
        if self.is_forked:
            return
        with self._lock:
            if self._cause is not None:
                return
            self._cause = failure
        # A failure of `give_back` is ignored, so that serving continues.
        with suppress(Exception):
            self._give_back(failure)

    def __enter__(self) -> None:
        """Enter the serving lane.

        Raises:
            Unavailable: this process is a forked child of the one that opened the device.
        """
        if self.is_forked:
            raise Unavailable("a forked child cannot use a device that its parent opened")

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        failure: BaseException | None,
        _trace: TracebackType | None,
    ) -> bool:
        """Suppress and report an `Exception`."""
        if not isinstance(failure, Exception):
            return False
        self.report(failure)
        return True


def _mark_forked(of: "weakref.ref[Safety]") -> None:
    safety = of()
    if safety is not None:
        safety.is_forked = True


class Reporting:
    """Like `Safety`, for the rollout lane: reports a failure, then raises it to the borrower.

    Use it only around calls that fail by a fault of rose, not by an error of the caller.
    """

    def __init__(self, safety: Safety) -> None:
        self._safety = safety

    def __enter__(self) -> None:
        """Enter the rollout lane; raise `Unavailable` in a forked child, as `Safety` does."""
        self._safety.__enter__()

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        failure: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if isinstance(failure, Exception):
            self._safety.report(failure)
