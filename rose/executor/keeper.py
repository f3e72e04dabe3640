"""The keeper: one Python thread that shows the host is alive and minds the deadlines."""

import threading
from collections.abc import Callable

from rose.units import NS_PER_MS, NS_PER_S


class Keeper:
    """Calls `tend` every few milliseconds until it is stopped.

    A Python thread on purpose: when the host process is frozen, or cannot get the interpreter,
    the heartbeat stops, and with it all fresh credit.
    """

    def __init__(self, tend: Callable[[], None], *, every_ms: float) -> None:
        """Prepare the thread; `tend` must not raise."""
        self._tend = tend
        self._every_s = every_ms * NS_PER_MS / NS_PER_S
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rose-keeper", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            self._tend()

    def stop(self) -> None:
        """Stop and join the thread."""
        self._stop.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()
