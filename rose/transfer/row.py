"""Weights that are one row of bits on the host: the plainest target of a commit."""

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument
from rose.transfer.codec.delta import Delta
from rose.transfer.codec.operations import delta_apply, digest
from rose.transfer.digests import Digest, TileDigests
from rose.transfer.tiles import Tiles


class Row:
    """A row of 16-bit elements, changed in place.

    Args:
        bits: (n,) uint16; not copied.
        tiles: how it is cut.
    """

    def __init__(self, bits: npt.NDArray[np.uint16], tiles: Tiles) -> None:
        if bits.shape != (tiles.count,):
            raise InvalidArgument(f"bits of shape {bits.shape} are no row of {tiles.count}")
        self._bits = bits
        self._tiles = tiles

    def apply(self, tile: int, delta: Delta, *, undo: bool) -> None:
        """Change one tile by `delta`, or back."""
        delta_apply(self.bits(tile), delta, undo=undo)

    def digest(self, tile: int) -> Digest:
        """Read a tile."""
        return digest(self.bits(tile))

    def bits(self, tile: int) -> npt.NDArray[np.uint16]:
        """Return a tile; it shares memory with the row."""
        return self._bits[self._tiles[tile].where]

    def digests(self) -> TileDigests:
        """Read the whole row."""
        return TileDigests.of(self.digest(tile.index) for tile in self._tiles)
