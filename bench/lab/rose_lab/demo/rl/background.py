"""A background thread that can be stopped in order, and that records its failure."""

import threading
from abc import ABC, abstractmethod
from typing import Final

from rose.errors import DeadlineExceeded, InternalError, RoseError, sentence
from rose.thread import Thread

# A trainer step on a busy core can delay a reply by half a minute.
_JOIN_S: Final = 40.0


class Background(ABC):
    """Runs `_work` in its own thread until `stop`.

    `_changed` guards all shared state, `_is_stopping` included, and wakes the thread. `error` holds
    the failure that ended the thread.
    """

    def __init__(self, name: str) -> None:
        self.error: RoseError | None = None
        self._changed = threading.Condition()
        self._is_stopping = False
        self._thread = Thread(self._run, name=name, on_failure=self._broke, daemon=False)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Let the thread finish its work, and join it.

        Raises:
            DeadlineExceeded: the thread still runs, so shared state may still change.
        """
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout=_JOIN_S)
            if self._thread.is_alive():
                raise DeadlineExceeded(
                    f"the thread '{self._thread.name}' does not end: it still runs "
                    f"{_JOIN_S:g} s after stop was called"
                )

    def _run(self) -> None:
        try:
            self._work()
        except RoseError as error:
            self.error = error

    def _broke(self, failure: BaseException) -> None:
        self.error = InternalError(
            f"the thread '{self._thread.name}' has ended: {sentence(failure)}"
        )

    @abstractmethod
    def _work(self) -> None:
        """Do the thread's work; return once `_is_stopping` is set and nothing is left to do."""
