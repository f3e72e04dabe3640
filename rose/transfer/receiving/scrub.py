"""The scrub: compares weights in use with their digests, a few tiles between two steps.

A commit reads only the tiles that it changes. In the other tiles the scrub detects memory that was
overwritten or has flipped bits; `Receiver.repair` repairs it tile by tile.
"""

from collections.abc import Callable

from rose.clock import Clock
from rose.errors import InvalidArgument
from rose.transfer.digests import Digest, TileDigests
from rose.transfer.receiving.commit import Target
from rose.units import NS_PER_MS


class Scrub:
    """Reads all tiles once. The committing thread uses it, between two steps.

    Args:
        weights: weights in use.
        digests: expected digests. Commits keep them up to date, so that a scrub may go on across
            versions. The scrub replaces wrong ones by the actual digests, for the next commit.
        clock: clock of the budget.
        repair: function for engines that compute on a copy of the weights: it makes the copy of a
            tile equal to the tile.
    """

    def __init__(
        self,
        weights: Target,
        digests: TileDigests,
        *,
        clock: Clock,
        repair: Callable[[int], object] = lambda _tile: None,
    ) -> None:
        self._weights = weights
        self.digests = digests
        self._clock = clock
        self._repair = repair
        self._tiles = sorted(digests)
        self._next = 0
        self._corrupted: dict[int, Digest] = {}

    @property
    def is_over(self) -> bool:
        """True if every tile was read."""
        return self._next == len(self._tiles)

    @property
    def corrupted(self) -> dict[int, Digest]:
        """Return the actual digest of each corrupted tile."""
        return dict(self._corrupted)

    def step(self, budget_ms: float) -> bool:
        """Read tiles until the budget is spent, but at least one; return whether tiles are left.

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
        if found != self.digests[tile]:
            self._corrupted[tile] = found
            self.digests.update({tile: found})
        self._repair(tile)
