"""The one place where rose catches all exceptions: serving continues whatever fails in rose."""

import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType


class Safety:
    """Stops lending, once, at the first failure inside rose.

    A context manager around all code of rose in the serving lane. It suppresses an `Exception` and
    passes it to `give_back`; `KeyboardInterrupt` and the like are raised. For any thread.
    """

    def __init__(self, give_back: Callable[[BaseException], None]) -> None:
        self._give_back = give_back
        self._lock = threading.Lock()  # Guards `_cause`.
        self._cause: BaseException | None = None

    @property
    def cause(self) -> BaseException | None:
        """The first failure, if any."""
        return self._cause

    def report(self, failure: BaseException) -> None:
        """Give everything back because of `failure`; later failures have no effect."""
        with self._lock:
            if self._cause is not None:
                return
            self._cause = failure
        # A failure of `give_back` is ignored, so that serving continues.
        with suppress(Exception):
            self._give_back(failure)

    def __enter__(self) -> None:
        """Enter the serving lane."""

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


class Reporting:
    """Like `Safety`, for the rollout lane: reports a failure, then raises it to the borrower.

    Use it only around calls that fail by a fault of rose, not by an error of the caller.
    """

    def __init__(self, safety: Safety) -> None:
        self._safety = safety

    def __enter__(self) -> None:
        """Enter the rollout lane."""

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        failure: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if isinstance(failure, Exception):
            self._safety.report(failure)
