"""A relay with a thread, so that it follows its upstream from the first line of a `with` on."""

import sys
import threading
from typing import Final

from rose.closing import Closing
from rose.errors import CorruptData, DeadlineExceeded, InvalidArgument, Unavailable, sentence
from rose.transfer.relaying.relay import Relay

BACKOFF_S: Final = 0.05
BACKOFF_MAX_S: Final = 2.0
WAIT_S: Final = 0.5
# What the world does to a relay; it tries again. Anything else is a bug and ends the thread.
_WORLD: Final = (CorruptData, DeadlineExceeded, InvalidArgument, MemoryError, Unavailable)


class Follower(Closing):
    """Calls the rounds of a relay until it is closed.

    Args:
        relay: nobody else calls its rounds.
        backoff_s: before another round after one that failed; doubles each time.
        backoff_max_s: the longest such pause.
        wait_s: how long to wait for a version before looking around; bounds `close`.
    """

    def __init__(
        self,
        relay: Relay,
        *,
        backoff_s: float = BACKOFF_S,
        backoff_max_s: float = BACKOFF_MAX_S,
        wait_s: float = WAIT_S,
    ) -> None:
        self._relay = relay
        self._backoff_s, self._backoff_max_s, self._wait_s = backoff_s, backoff_max_s, wait_s
        self._failure: str | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rose-relay", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> str | None:
        """Return what is in the way of the relay, one sentence; None while all is well."""
        return self._failure

    def close(self) -> None:
        """Stop after the round that is under way, and join the thread; the relay serves on."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        pause_s = self._backoff_s
        try:
            while not self._stop.is_set():
                try:
                    self._relay.round(self._wait_s)
                except _WORLD as error:
                    self._failure = sentence(error)
                    self._stop.wait(pause_s)
                    pause_s = min(2 * pause_s, self._backoff_max_s)
                    continue
                self._failure, pause_s = None, self._backoff_s
        finally:
            if (bug := sys.exc_info()[1]) is not None:
                self._failure = f"the relay has ended: {sentence(bug)}"
