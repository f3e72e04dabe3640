"""When a gate has been closed for so long that its borrower is no worker any more."""

from collections.abc import Callable
from typing import Final

from rose.events import Reason
from rose.units import NS_PER_S

# Serving is idle, and still nothing can be promised: that ends when steps become shorter or better
# known, which takes many of them. A second is longer than any pause between two quanta.
_UNCERTIFIED_NS: Final = 1 * NS_PER_S
# Serving's bursts pass. One that lasts longer costs more than the turns cost to begin elsewhere.
_BUSY_NS: Final = 10 * NS_PER_S
# Who did not ask for so long was not refused meanwhile.
_SILENCE_NS: Final = 1 * NS_PER_S
_UNCERTIFIED: Final = (Reason.SLO_AT_RISK, Reason.NO_EVIDENCE)


class ShutOut:
    """Whether a borrower that wants to run has been refused for too long. Pure; one thread.

    From then on it stays shut out until it passes a gate.
    """

    def __init__(self) -> None:
        """Start with a borrower that may run."""
        self.is_over_bound = False
        self._since_ns: int | None = None
        self._refused_ns = 0

    def passed(self) -> None:
        """Note that it runs."""
        self._since_ns, self.is_over_bound = None, False

    def refused(self, now_ns: int, why: Callable[[], Reason]) -> None:
        """Note that it wants to run and waits.

        Args:
            now_ns: time of the look.
            why: tells the reason; called when a bound could be over.
        """
        if self._since_ns is None or now_ns - self._refused_ns > _SILENCE_NS:
            self._since_ns = now_ns
        self._refused_ns = now_ns
        waited_ns = now_ns - self._since_ns
        if waited_ns > _UNCERTIFIED_NS and (waited_ns > _BUSY_NS or why() in _UNCERTIFIED):
            self.is_over_bound = True
