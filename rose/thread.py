"""Threads that cannot die unseen."""

import sys
import threading
from collections.abc import Callable


class Thread(threading.Thread):
    """A thread that tells its owner when a failure ends it, besides showing the traceback.

    Every thread of rose is one. `failure` is what ended it, None while it runs
    and after a good end.
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
            work: what it does.
            name: of the thread.
            on_failure: called in the thread with what ended it; stops or reports whatever rests on
                the thread.
            daemon: whether the process may end while it runs.
        """
        super().__init__(name=name, daemon=daemon)
        self._work = work
        self._on_failure = on_failure
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Do the work; whatever ends it goes to the owner, then on to `threading.excepthook`."""
        try:
            self._work()
        finally:
            self.failure = sys.exc_info()[1]
            if self.failure is not None:
                self._on_failure(self.failure)
            # Whoever keeps a thread that has ended does not keep what it worked for.
            del self._work, self._on_failure
