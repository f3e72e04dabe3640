"""Weights accessed by tile, whatever holds them."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument
from rose.transfer.codec.delta import Delta
from rose.transfer.codec.operations import delta_apply, digest
from rose.transfer.digests import Digest, TileDigests
from rose.transfer.tiles import Tiles


class TileViews(Protocol):
    """Access to the tiles of some weights."""

    def bits(self, tile: int) -> Any:
        """Return a tile for the codec; it shares memory with the weights."""
        ...


class ShardViews:
    """Tiles as views into the tensors of a rank; a tile may have several places.

    It is a `Target` of commits.

    Args:
        places: views by tile, at least one each: NumPy arrays or torch tensors with strides >= 0.
            Not copied.
    """

    def __init__(self, places: Mapping[int, tuple[Any, ...]]) -> None:
        if not all(places.values()):
            raise InvalidArgument("every tile must have at least one place")
        self._places = dict(places)

    @property
    def tiles(self) -> tuple[int, ...]:
        """Return the local tiles, ascending."""
        return tuple(sorted(self._places))

    def bits(self, tile: int) -> Any:
        """Return the first place of a tile."""
        return self._at(tile)[0]

    def apply(self, tile: int, delta: Delta, *, undo: bool) -> None:
        """Change a tile in all its places, or in none."""
        done: list[Any] = []
        views = self._at(tile)
        try:
            for view in views:
                delta_apply(view, delta, undo=undo)
                done.append(view)
        finally:
            if len(done) < len(views):
                for view in done:
                    delta_apply(view, delta, undo=not undo)

    def digest(self, tile: int) -> Digest:
        """Return the digest of a tile; if its places differ, the sum of theirs."""
        found = {digest(view) for view in self._at(tile)}
        if len(found) == 1:
            return next(iter(found))
        return (sum(one for one, _ in found) % (1 << 64), sum(two for _, two in found) % (1 << 64))

    def digests(self) -> TileDigests:
        """Return the digests of all tiles."""
        return TileDigests({tile: self.digest(tile) for tile in self._places})

    def _at(self, tile: int) -> tuple[Any, ...]:
        try:
            return self._places[tile]
        except KeyError:
            raise InvalidArgument(f"tile {tile} is not of this shard") from None


class Row(ShardViews):
    """A row of 16-bit elements on the host: the simplest target of a commit.

    Args:
        bits: (n,) uint16; not copied.
        tiles: tiles of the row.
    """

    def __init__(self, bits: npt.NDArray[np.uint16], tiles: Tiles) -> None:
        if bits.shape != (tiles.count,):
            raise InvalidArgument(f"bits must have the shape ({tiles.count},), got {bits.shape}")
        super().__init__({tile.index: (bits[tile.where],) for tile in tiles})
