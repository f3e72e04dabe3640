"""Keeps borrowers away for a while after one of them harmed serving or crashed."""

import threading
from typing import Final

from rose._core import Clock
from rose.errors import RetryLater
from rose.units import NS_PER_MS, NS_PER_S

# Pause after the first bad end: an honest borrower that crashed once loses no more.
_FIRST_NS: Final = NS_PER_S
_LONGEST_NS: Final = 600 * NS_PER_S
# After this time without a bad end, the next pause is short again.
_FORGIVEN_AFTER_NS: Final = 600 * NS_PER_S


class Readmission:
    """The pause before the next borrower may attach. For any thread.

    The pause follows a bad end: serving killed the borrower, or it ended without closing its
    device. The first pause takes 1 s, and each further one twice as long, up to ten minutes. The
    pause belongs to the device. Only processes of serving's user may attach, so it belongs to the
    user too, and a supervisor that restarts a borrower does not shorten it.
    """

    def __init__(self, clock: Clock) -> None:
        """Start without a pause."""
        self._clock = clock
        self._lock = threading.Lock()  # Guards the fields below.
        self._pause_ns = 0
        self._ends_ns = 0
        self._why = ""

    def ended_badly(self, why: str) -> None:
        """Begin a pause.

        Args:
            why: reason of the pause, as a clause whose subject is the borrower.
        """
        now_ns = self._clock.now_ns()
        with self._lock:
            is_forgiven = now_ns - self._ends_ns > _FORGIVEN_AFTER_NS
            longer_ns = min(2 * self._pause_ns, _LONGEST_NS)
            self._pause_ns = _FIRST_NS if is_forgiven or self._pause_ns == 0 else longer_ns
            self._ends_ns = now_ns + self._pause_ns
            self._why = why

    @property
    def barred(self) -> RetryLater | None:
        """The error for a borrower that attaches now; None if it may attach."""
        with self._lock:
            left_ns = self._ends_ns - self._clock.now_ns()
            if left_ns <= 0:
                return None
            return RetryLater(
                f"no borrower may attach for another {left_ns / NS_PER_S:.1f} s, because "
                f"{self._why}",
                retry_after_ms=left_ns / NS_PER_MS,
            )
