"""The one broad catch of rose: whatever fails, serving goes on as if rose were not there."""

import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType


class Safety:
    """Stops lending, once, at the first failure inside rose.

    Used as a context manager around everything that runs in the serving lane: an `Exception` is
    swallowed there and handed to `give_back`; `KeyboardInterrupt` and the like pass.

    Any thread may enter it.
    """

    def __init__(self, give_back: Callable[[BaseException], None]) -> None:
        """Call `give_back` at the first failure."""
        self._give_back = give_back
        self._lock = threading.Lock()  # Guards `_cause`.
        self._cause: BaseException | None = None

    @property
    def cause(self) -> BaseException | None:
        """What failed first; None while all is well."""
        return self._cause

    def report(self, failure: BaseException) -> None:
        """Give everything back because of `failure`; later failures change nothing."""
        with self._lock:
            if self._cause is not None:
                return
            self._cause = failure
        # What fails while everything is given back has nobody left to tell: serving goes on.
        with suppress(Exception):
            self._give_back(failure)

    def __enter__(self) -> None:
        """Begin a protected piece of the serving lane."""

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        failure: BaseException | None,
        _trace: TracebackType | None,
    ) -> bool:
        """Swallow an `Exception`: none of ours reaches the serving lane."""
        if not isinstance(failure, Exception):
            return False
        self.report(failure)
        return True


class Reporting:
    """The same in the rollout lane, where a failure inside rose is raised after all is given back.

    Wrap only what is rose's own, not what a caller can get wrong.
    """

    def __init__(self, safety: Safety) -> None:
        """Report to `safety`."""
        self._safety = safety

    def __enter__(self) -> None:
        """Begin a piece of the rollout lane."""

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        failure: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Give everything back because of an `Exception`; it goes on to the borrower."""
        if isinstance(failure, Exception):
            self._safety.report(failure)
