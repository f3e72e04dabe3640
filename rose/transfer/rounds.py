"""A thread that repeats a function and survives failures of its environment."""

import threading
from collections.abc import Callable
from typing import Final

from rose.closing import Closing
from rose.errors import CorruptData, DeadlineExceeded, InvalidArgument, Unavailable, sentence
from rose.thread import Thread

# Pause after a failed round, in seconds. It doubles after each further failure, up to a limit.
BACKOFF_S: Final = 0.05
BACKOFF_MAX_S: Final = 2.0
# Environment failures, which are retried. Any other error is a bug and ends the thread.
_WORLD: Final = (CorruptData, DeadlineExceeded, InvalidArgument, MemoryError, Unavailable)


class Rounds(Closing):
    """Calls a function again and again from `start` to `close`, and pauses after a failed call.

    Args:
        each: function to call, one round per call; must return soon after `stop` is set.
        who: subject of error messages.
        name: name of the thread.
        stop: event set by `close`; a new one by default.
        rest: called after a successful round; must also return soon after `stop` is set.
    """

    def __init__(
        self,
        each: Callable[[], None],
        *,
        who: str,
        name: str,
        stop: threading.Event | None = None,
        rest: Callable[[], object] = lambda: None,
    ) -> None:
        self._each, self._rest, self._who = each, rest, who
        self._stop = threading.Event() if stop is None else stop
        self.failure: str | None = None  # current problem, one sentence
        self._thread = Thread(self._run, name=name, on_failure=self._broke)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def has_ended(self, timeout_s: float) -> bool:
        """Wait for the thread to end; return whether it has.

        Return True at once if called by that thread itself.
        """
        if self._thread is threading.current_thread():
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def close(self) -> None:
        """Stop after the current round, and join the thread unless called by that thread."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        pause_s = BACKOFF_S
        while not self._stop.is_set():
            try:
                self._each()
            except _WORLD as error:
                self.failure = sentence(error)
                self._stop.wait(pause_s)
                pause_s = min(2 * pause_s, BACKOFF_MAX_S)
                continue
            self.failure, pause_s = None, BACKOFF_S
            self._rest()

    def _broke(self, failure: BaseException) -> None:
        self.failure = f"the {self._who} has ended: {sentence(failure)}"
