"""The thread in a borrower's process that receives revocations."""

import threading
from typing import Final

from rose._core import Attachment
from rose.executor.loans import SERVING_IS_GONE, Loans
from rose.executor.notices import Notices
from rose.executor.rollout import RolloutLane
from rose.executor.safety import Safety
from rose.thread import Thread
from rose.units import MS_PER_S

# Longest time between two checks.
_LOOK_MS: Final = 50.0


class Watcher:
    """Waits for the mailbox's bell, and notifies the engine.

    The attachment's own thread reports that the process lives, and returns revoked slabs that no
    step pins if the engine is too busy to do so.
    """

    def __init__(
        self, attachment: Attachment, lane: RolloutLane, loans: Loans, safety: Safety
    ) -> None:
        self._attachment = attachment
        self._lane = lane
        self._loans = loans
        self._safety = safety
        self._notices = Notices(attachment, lane, clock=attachment)
        self._stop = threading.Event()
        self._thread = Thread(self._run, name="rose-watcher", on_failure=safety.report)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def _run(self) -> None:
        # After borrowing has ended, the thread still returns the remaining slabs on revocation.
        while not self._stop.is_set():
            with self._safety:
                news = self._attachment.news(timeout_ms=_LOOK_MS)
                if news.is_arbiter_gone or self._loans.is_gate_shut:
                    self._loans.end(SERVING_IS_GONE)
                    self._lane.on_room()  # Wakes an engine that waits for memory.
                    return
                self._notices.report(news)
                self._loans.tidy()
                continue
            self._stop.wait(_LOOK_MS / MS_PER_S)  # This is reached after a failure only.

    def close(self) -> None:
        """Stop and join the thread. Idempotent."""
        self._stop.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()
