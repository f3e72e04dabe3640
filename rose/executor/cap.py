"""The largest number of slabs that a device may lend, with a time limit."""

import math

from rose._core import Clock
from rose.units import NS_PER_MS


class Cap:
    """The largest number of slabs that may be on loan until a given time; afterwards it is 0.

    An operator's limit applies in addition, until the operator changes it. Guarded by the caller's
    lock.
    """

    def __init__(self, slab_count: int, clock: Clock) -> None:
        """Start without a cap: all `slab_count` slabs of the pool may be lent."""
        self._slab_count = slab_count
        self._clock = clock
        self._slabs, self._ends_ns = slab_count, math.inf
        self._limit = slab_count

    def set(self, slabs: int, *, ttl_ns: float) -> None:
        """Allow at most `slabs` slabs on loan for the next `ttl_ns` nanoseconds."""
        self._slabs = min(slabs, self._slab_count)
        self._ends_ns = self._clock.now_ns() + ttl_ns

    def limit(self, slabs: int) -> None:
        """Set the operator's limit to `slabs` slabs."""
        self._limit = min(slabs, self._slab_count)

    @property
    def slabs(self) -> int:
        """Number of slabs that may be on loan now, by the cap and the operator's limit."""
        is_over = not math.isinf(self._ends_ns) and self._clock.now_ns() >= self._ends_ns
        return 0 if is_over else min(self._slabs, self._limit)

    def left(self) -> tuple[int, float] | None:
        """Return the number of slabs that may be on loan now, and the ms until the cap expires.

        Both are 0 after the cap has expired. The time is infinite if only an operator's limit
        applies. None: there is neither a cap nor a limit.
        """
        if math.isinf(self._ends_ns) and self.slabs == self._slab_count:
            return None
        return self.slabs, max(0.0, (self._ends_ns - self._clock.now_ns()) / NS_PER_MS)
