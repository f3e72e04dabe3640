"""How often steps may be aborted for their slabs, so that rollouts cannot starve."""

from rose._core import Clock
from rose.units import NS_PER_MS, NS_PER_S


class AbortRation:
    """A bucket of permissions to abort, filled at `per_s`; it may be overdrawn.

    What serving needs is never refused, so an abort is not. What waits is the next loan: growth is
    held off until one permission is there again, and as no new slabs go out meanwhile, what is on
    loan shrinks and cannot be taken back for ever.

    The law: within t seconds there are at most `burst + per_s * t` aborts, and those that one loan
    costs beyond its first, slab by slab, which the loans after it make up for.

    The caller's lock.
    """

    def __init__(self, *, per_s: float, clock: Clock) -> None:
        """Start with a full bucket.

        Args:
            per_s: permissions that come in a second, > 0; the bucket holds as many, and at least 1.
            clock: of the device.
        """
        self._period_ns = NS_PER_S / per_s
        self._burst = max(1.0, per_s)
        self._clock = clock
        self._level = self._burst
        self._filled_ns = clock.now_ns()
        self.count = 0  # Steps that were asked to abort.

    def _fill(self) -> None:
        now_ns = max(self._filled_ns, self._clock.now_ns())  # Time that came twice fills once.
        self._level = min(self._burst, self._level + (now_ns - self._filled_ns) / self._period_ns)
        self._filled_ns = now_ns

    def aborted(self) -> None:
        """Note that a step was asked to abort."""
        self._fill()
        self._level -= 1.0
        self.count += 1

    def wait_ms(self) -> float:
        """How long growth is held off, in milliseconds."""
        self._fill()
        return max(0.0, (1.0 - self._level) * self._period_ns / NS_PER_MS)
