"""Threads whose failures are reported."""

import sys
import threading
from collections.abc import Callable


class Thread(threading.Thread):
    """A thread that reports an uncaught exception to its owner and prints the traceback.

    All threads of rose use it. `failure` is None while the thread runs and after a normal end;
    otherwise it is the exception.
    """

    def __init__(
        self,
        work: Callable[[], None],
        *,
        name: str,
        on_failure: Callable[[BaseException], None],
        daemon: bool = True,
    ) -> None:
        """Prepare the thread.

        Args:
            work: the thread's function.
            name: thread name.
            on_failure: called in the thread with the exception; it must stop or report the parts
                that depend on the thread.
            daemon: whether the process may end while the thread runs.
        """
        super().__init__(name=name, daemon=daemon)
        self._work = work
        self._on_failure = on_failure
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Do the work; report a failure to the owner, then to `threading.excepthook`."""
        try:
            self._work()
        finally:
            self.failure = sys.exc_info()[1]
            if self.failure is not None:
                self._on_failure(self.failure)
            # A reference to an ended thread must not keep alive what its functions refer to.
            del self._work, self._on_failure
