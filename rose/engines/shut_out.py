"""Decides when a borrower was refused for so long that its turns should run on other workers."""

from collections.abc import Callable
from typing import Final

from rose.events import Reason
from rose.units import NS_PER_S

# Longest wait if no certificate is possible (`_UNCERTIFIED`). Only many steps of serving can change
# that, and a second is longer than any pause between two quanta.
_UNCERTIFIED_NS: Final = 1 * NS_PER_S
# Longest wait during a burst of serving: a longer one costs more than starting the turns elsewhere.
_BUSY_NS: Final = 10 * NS_PER_S
# If the borrower requests no quantum for longer than this, its wait is counted from zero again.
_SILENCE_NS: Final = 1 * NS_PER_S
_UNCERTIFIED: Final = (Reason.SLO_AT_RISK, Reason.NO_EVIDENCE)


class ShutOut:
    """Measures whether a borrower with work was refused for too long. For one thread.

    The borrower stays shut out until it passes a gate.
    """

    def __init__(self) -> None:
        """Start with a borrower that may run."""
        self.is_over_bound = False
        self._since_ns: int | None = None
        self._refused_ns = 0

    def passed(self) -> None:
        """Record that the borrower has passed a gate."""
        self._since_ns, self.is_over_bound = None, False

    def refused(self, now_ns: int, why: Callable[[], Reason]) -> None:
        """Record that the borrower has work and was refused.

        Args:
            now_ns: current time.
            why: function that returns the reason; called only if a bound may be exceeded.
        """
        if self._since_ns is None or now_ns - self._refused_ns > _SILENCE_NS:
            self._since_ns = now_ns
        self._refused_ns = now_ns
        waited_ns = now_ns - self._since_ns
        if waited_ns > _UNCERTIFIED_NS and (waited_ns > _BUSY_NS or why() in _UNCERTIFIED):
            self.is_over_bound = True
