"""Rollouts of the demo in a process of their own."""

import json
import queue
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from rose.errors import DeadlineExceeded, Unavailable
from rose.rl.borrower_settings import BorrowerSettings
from rose.rl.child import Child

_MODULE: Final = "rose.node.borrower"
_READY_S: Final = 120.0
# A pause waits for a step's end, which serving may hold up.
_ANSWER_S: Final = 60.0


class RemoteRollouts:
    """A load whose engine is in another process, which attached to our device.

    The lock guards the pipe: a line and its answer belong together.
    """

    def __init__(self, settings: BorrowerSettings) -> None:
        """Prepare it; the process is made by `start`.

        Args:
            settings: of the engine there and of its load.
        """
        self._settings = settings
        self._lock = threading.Lock()
        self._answers: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
        self._is_ready = threading.Event()
        self._ended: str | None = None
        self._child: Child | None = None
        self._last: Mapping[str, Any] = {"tokens": 0, "failures": []}

    @property
    def tokens(self) -> int:
        """Tokens generated so far."""
        self._say({})
        return int(self._last["tokens"])

    @property
    def failures(self) -> list[str]:
        """What went wrong there, the end of the process included."""
        ended = [] if self._ended is None else [self._ended]
        return [*self._last["failures"], *ended]

    def start(self) -> None:
        """Start the process, and wait until it has attached.

        Raises:
            Unavailable: it ended instead.
            DeadlineExceeded: it is not ready in time.
        """
        self._child = Child(
            [sys.executable, "-m", _MODULE],
            lambda _ready: self._is_ready.set(),
            on_end=self._on_end,
            ready_within_s=_READY_S,
            on_line=self._on_line,
            first_line=self._settings.to_line(),
        )
        if not self._is_ready.wait(_READY_S):
            raise DeadlineExceeded("the borrower's process is not ready")
        if self._ended is not None:
            raise Unavailable(self._ended)

    def _on_end(self, sentence: str) -> None:
        self._ended = sentence
        self._is_ready.set()
        self._answers.put({})

    def _on_line(self, line: str) -> None:
        with suppress(ValueError):
            answer = json.loads(line)
            if isinstance(answer, dict) and "tokens" in answer:
                self._answers.put(answer)

    def _say(self, message: Mapping[str, Any]) -> None:
        """Say it, and wait for the answer; a process that has ended keeps its last one."""
        with self._lock:
            if self._child is None or self._ended is not None:
                return
            while not self._answers.empty():  # To a question that nobody waits for any more.
                self._answers.get()
            self._child.say(message)
            try:
                answer = self._answers.get(timeout=_ANSWER_S)
            except queue.Empty:
                raise DeadlineExceeded("the borrower's process does not answer") from None
            self._last = answer or self._last

    def resume(self) -> None:
        """Let rollouts run."""
        self._say({"run": True})

    def pause(self) -> None:
        """Stop rollouts; returns when none runs."""
        self._say({"run": False})

    def stop(self) -> None:
        """End the process."""
        if self._child is not None:
            self._child.stop()
