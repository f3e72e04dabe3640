"""The most that a device may lend, for as long as somebody has said so."""

import math

from rose._core import Clock
from rose.units import NS_PER_MS


class Cap:
    """Slabs that may be on loan until a moment, and none after it. The caller's lock."""

    def __init__(self, slab_count: int, clock: Clock) -> None:
        """Start without one: all `slab_count` slabs of the pool may be lent."""
        self._slab_count = slab_count
        self._clock = clock
        self._slabs, self._ends_ns = slab_count, math.inf

    def set(self, slabs: int, *, ttl_ns: float) -> None:
        """Allow at most `slabs` for `ttl_ns` from now."""
        self._slabs = min(slabs, self._slab_count)
        self._ends_ns = self._clock.now_ns() + ttl_ns

    @property
    def slabs(self) -> int:
        """What may be on loan now, whatever certificates and the borrower's limit say."""
        is_over = not math.isinf(self._ends_ns) and self._clock.now_ns() >= self._ends_ns
        return 0 if is_over else self._slabs

    def left(self) -> tuple[int, float] | None:
        """Return the slabs that may be on loan now and the milliseconds for which that holds.

        After a cap has run out both are 0; None without a cap.
        """
        if math.isinf(self._ends_ns) and self._slabs == self._slab_count:
            return None
        return self.slabs, max(0.0, (self._ends_ns - self._clock.now_ns()) / NS_PER_MS)
