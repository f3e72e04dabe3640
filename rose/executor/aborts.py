"""Limit how often steps are aborted for their slabs, so that rollouts cannot starve."""

from rose._core import Clock
from rose.units import NS_PER_MS, NS_PER_S


class AbortRation:
    """A token bucket for aborts, filled with `per_s` tokens per second; it may be overdrawn.

    Serving's needs are never refused, so an abort never waits. The next loan waits instead, until
    the bucket holds a token again. No slabs are granted in the meantime, so the loan shrinks and
    the aborts end.

    The law: if each grant is followed by at most one abort, t seconds have at most
    `capacity + per_s * t` aborts. A loan that is taken back slab by slab may cause further aborts;
    the next grant then waits longer to make up for them.

    Guarded by the caller's lock.
    """

    def __init__(self, *, per_s: float, clock: Clock) -> None:
        """Start with a full bucket.

        Args:
            per_s: tokens per second, > 0. The bucket's capacity is max(1, `per_s`) tokens.
            clock: the device's clock.
        """
        self._period_ns = NS_PER_S / per_s
        self._burst = max(1.0, per_s)
        self._clock = clock
        self._level = self._burst
        self._filled_ns = clock.now_ns()
        self.count = 0  # Number of steps that were asked to abort.

    def _fill(self) -> None:
        now_ns = max(self._filled_ns, self._clock.now_ns())  # The same time must not count twice.
        self._level = min(self._burst, self._level + (now_ns - self._filled_ns) / self._period_ns)
        self._filled_ns = now_ns

    def aborted(self) -> None:
        """Record an abort request."""
        self._fill()
        self._level -= 1.0
        self.count += 1

    def wait_ms(self) -> float:
        """Return for how many milliseconds the loan must not grow."""
        self._fill()
        return max(0.0, (1.0 - self._level) * self._period_ns / NS_PER_MS)
