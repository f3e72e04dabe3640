"""The sweep: weights in use are read, a little between two steps, and compared with their digests.

A commit reads what it changes. What it does not change was right once; memory that is overwritten
or flips later is found here, and repaired tile by tile (`Receiver.drifted`).
"""

from collections.abc import Callable

from rose.clock import Clock
from rose.errors import InvalidArgument
from rose.transfer.digests import Digest, TileDigests
from rose.transfer.receiving.commit import Target
from rose.units import NS_PER_MS


class Sweep:
    """Reads all tiles once. The thread that commits uses it, between two steps.

    Args:
        weights: in use.
        digests: what they are held to be: those that commits keep up, so that a sweep may be under
            way while versions come. What is found is written there, so that the next commit knows.
        clock: of the budget.
        mend: where steps read a copy of the tile: lets that be the tile again, and returns whether
            it was another.
    """

    def __init__(
        self,
        weights: Target,
        digests: TileDigests,
        *,
        clock: Clock,
        mend: Callable[[int], bool] = lambda _tile: False,
    ) -> None:
        self._weights = weights
        self._digests = digests
        self._clock = clock
        self._mend = mend
        self._tiles = sorted(digests)
        self._next = 0
        self._drifted: dict[int, Digest] = {}
        self._mended: list[int] = []

    @property
    def is_over(self) -> bool:
        """Whether every tile was read."""
        return self._next == len(self._tiles)

    @property
    def digests(self) -> TileDigests:
        """Return the digests, with what was found in them."""
        return self._digests

    @property
    def drifted(self) -> dict[int, Digest]:
        """Return the tiles that were others than they were held to be, and what they are."""
        return dict(self._drifted)

    @property
    def mended(self) -> tuple[int, ...]:
        """Return the tiles of which steps read a copy that was another."""
        return tuple(self._mended)

    def step(self, budget_ms: float) -> bool:
        """Read until the budget is spent, one tile at least; return whether there is more.

        Raises:
            InvalidArgument: the budget is negative.
        """
        if budget_ms < 0:
            raise InvalidArgument(f"budget_ms {budget_ms} must not be negative")
        until_ns = self._clock.now_ns() + int(budget_ms * NS_PER_MS)
        while not self.is_over:
            self._read(self._tiles[self._next])
            self._next += 1
            if self._clock.now_ns() >= until_ns:
                break
        return not self.is_over

    def _read(self, tile: int) -> None:
        found = self._weights.digest(tile)
        if found != self._digests[tile]:
            self._drifted[tile] = found
            self._digests.update({tile: found})
        if self._mend(tile):
            self._mended.append(tile)
