"""The keeper: a Python thread that sends heartbeats and enforces deadlines."""

import threading
from collections.abc import Callable

from rose._core import Arbiter
from rose.thread import Thread
from rose.units import NS_PER_MS


class Keeper:
    """Calls `tend` every few milliseconds, and whenever the bell rings, until `stop`.

    It is a Python thread on purpose: if the host process is frozen or the interpreter is blocked,
    the heartbeat stops, and with it all new credit.
    """

    def __init__(
        self,
        tend: Callable[[], None],
        bell: Arbiter,
        *,
        every_ms: float,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """Prepare the thread.

        Args:
            tend: function to call; it must not raise.
            bell: arbiter whose bell rings when serving is short of memory or a cap was lowered.
            every_ms: longest time between two calls, in milliseconds.
            on_failure: function that receives the exception if `tend` raises; the thread then ends.
        """
        self._tend = tend
        self._bell = bell
        self._every_ns = int(every_ms * NS_PER_MS)
        self._rings = 0
        self._stop = threading.Event()
        self._thread = Thread(self._run, name="rose-keeper", on_failure=on_failure)

    def start(self) -> None:
        """Start the thread; it responds to every ring from now on."""
        self._rings = self._bell.listen(0, timeout_ns=0)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._rings = self._bell.listen(self._rings, timeout_ns=self._every_ns)
                if not self._stop.is_set():
                    self._tend()
        finally:
            # This last call has a timeout of 0, so that the core does not count the time after it
            # as a standstill of the process.
            self._bell.listen(self._rings, timeout_ns=0)

    def stop(self) -> None:
        """Stop and join the thread."""
        self._stop.set()
        self._bell.ring()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()
