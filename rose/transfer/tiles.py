"""Tiles: the pieces in which weights are sent, applied and undone, and views of their elements."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument
from rose.transfer.codec.delta import WIDTHS, Delta
from rose.transfer.codec.operations import delta_apply, digest, digests
from rose.transfer.codec.tensor import overwrite
from rose.transfer.digests import Digest, TileDigests
from rose.units import MIB, ceil_div

# Largest size of a tile. If all its elements change, its frame is a few hundred bytes larger than
# the tile, far below `CHUNK_BYTES_MAX`.
TILE_BYTES: Final = 2 * MIB
TILE_ELEMENTS: Final = TILE_BYTES // 2
# The digest works on 64-bit words: four elements of 16 bits.
_WORD_ELEMENTS: Final = 4
_TILES_MAX: Final = 1 << 32
_LAYOUT_DIGITS: Final = 64


@dataclass(frozen=True, slots=True)
class Tile:
    """A piece of the weights; its elements are in row-major order.

    Args:
        index: index among the tiles.
        first: number of elements in all earlier tiles. If the weights are one row, this is the
            index of the tile's first element.
        count: number of elements, > 0.
        width: bits per element.
    """

    index: int
    first: int
    count: int
    width: int = 16

    @property
    def where(self) -> slice:
        """Return the slice of a row that this tile covers."""
        return slice(self.first, self.first + self.count)

    @property
    def nbytes(self) -> int:
        """Return the size of the elements, in bytes."""
        return self.count * self.width // 8


class Tiles:
    """All tiles of the weights.

    Publisher and receivers must have equal tiles. Two `Tiles` are equal if they have the same
    layout id.

    Args:
        counts: number of elements of each tile.
        widths: bits per element of each tile.
        layout: id of the layout, 64 hexadecimal digits.

    Raises:
        InvalidArgument: a tile is empty or too large, counts and widths differ in length, or a
            width or the layout id is invalid.
    """

    __slots__ = ("_ends", "_widths", "count", "layout", "nbytes")

    def __init__(self, counts: Sequence[int], widths: Sequence[int], layout: str) -> None:
        sizes = np.asarray(counts, np.int64)
        bits = np.asarray(widths, np.int64)
        if sizes.shape != bits.shape or sizes.ndim != 1 or len(sizes) >= _TILES_MAX:
            raise InvalidArgument(
                f"counts and widths must be flat, of one length below 2^32, got shapes "
                f"{sizes.shape} and {bits.shape}"
            )
        if len(sizes) and not set(np.unique(bits).tolist()) <= set(WIDTHS):
            raise InvalidArgument(
                f"the elements of a tile must have 8, 16 or 32 bits, got {np.unique(bits).tolist()}"
            )
        if len(sizes) and (sizes.min() < 1 or (sizes * bits).max() > 8 * TILE_BYTES):
            raise InvalidArgument(
                f"a tile must have 1 element or more, and at most {TILE_BYTES} bytes, got tiles of "
                f"{sizes.min()} to {sizes.max()} elements"
            )
        if not is_layout(layout):
            raise InvalidArgument(f"layout '{layout}' is not 64 hexadecimal digits")
        self._ends: list[int] = np.cumsum(sizes).tolist()
        self._widths: list[int] = bits.tolist()
        self.layout = layout
        self.count = int(sizes.sum())
        self.nbytes = int((sizes * bits).sum()) // 8

    @classmethod
    def of(cls, count: int, tile_elements: int = TILE_ELEMENTS) -> "Tiles":
        """Cut a row of `count` elements of 16 bits; the last tile may be shorter.

        Raises:
            InvalidArgument: a value is out of range; the message names it.
        """
        if not 0 <= count < 1 << 48:
            raise InvalidArgument(f"count {count} must be from 0 to 2^48 - 1 elements")
        if not 0 < tile_elements <= TILE_ELEMENTS or tile_elements % _WORD_ELEMENTS:
            raise InvalidArgument(
                f"tile_elements {tile_elements} must be a multiple of {_WORD_ELEMENTS} "
                f"from {_WORD_ELEMENTS} to {TILE_ELEMENTS}"
            )
        tiles = ceil_div(count, tile_elements)
        counts = np.full(tiles, tile_elements, np.int64)
        if tiles:
            counts[-1] = count - (tiles - 1) * tile_elements
        text = f"row of {count} elements of 16 bits in tiles of {tile_elements}"
        layout = hashlib.sha256(text.encode()).hexdigest()
        return cls(counts.tolist(), [16] * tiles, layout)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> Tile:
        if not 0 <= index < len(self):
            raise IndexError(f"tile index {index} must be from 0 to {len(self) - 1}")
        first = self._ends[index - 1] if index else 0
        return Tile(index, first, self._ends[index] - first, self._widths[index])

    def __iter__(self) -> Iterator[Tile]:
        return (self[index] for index in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tiles) and self.layout == other.layout

    def __hash__(self) -> int:
        return hash(self.layout)

    def __repr__(self) -> str:
        return f"Tiles({len(self)} of {self.count} elements, layout {self.layout[:12]})"


def is_layout(text: str) -> bool:
    """Return True if a text is a valid layout id."""
    return len(text) == _LAYOUT_DIGITS and all(digit in "0123456789abcdef" for digit in text)


class TileViews(Protocol):
    """Access to tiles of the weights by index."""

    def bits(self, tile: int) -> Any:
        """Return the elements of a tile for the codec; they share memory with the weights."""
        ...


class ShardViews:
    """The tiles of a rank, as views into its tensors; a `Target` of commits.

    A tile that the rank stores several times has several views.

    Args:
        places: views by tile, at least one each: NumPy arrays or torch tensors with strides >= 0.
            Not copied.
    """

    def __init__(self, places: Mapping[int, tuple[Any, ...]]) -> None:
        if not all(places.values()):
            raise InvalidArgument("every tile must have at least one view")
        self._places = dict(places)

    @property
    def tiles(self) -> tuple[int, ...]:
        """Return the local tiles, ascending."""
        return tuple(sorted(self._places))

    def bits(self, tile: int) -> Any:
        """Return the first view of a tile."""
        return self._at(tile)[0]

    def apply(self, tile: int, delta: Delta, *, undo: bool) -> None:
        """Apply or undo the delta of a tile in all its views, or in none."""
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

    def write(self, tile: int, elements: Any) -> None:
        """Overwrite a tile in all its views with a row of elements on the host."""
        for view in self._at(tile):
            overwrite("a tile of the target", view, elements)

    def digest(self, tile: int) -> Digest:
        """Return the digest of a tile; if its views differ, the sum of their distinct digests."""
        views = self._at(tile)
        if len(views) == 1:
            return digest(views[0])
        found = {digest(view) for view in views}
        if len(found) == 1:
            return next(iter(found))
        return (sum(one for one, _ in found) % (1 << 64), sum(two for _, two in found) % (1 << 64))

    def digests(self) -> TileDigests:
        """Return the digests of all tiles."""
        alone = [tile for tile, views in self._places.items() if len(views) == 1]
        found = dict(zip(alone, digests([self._places[tile][0] for tile in alone]), strict=True))
        several = {tile: self.digest(tile) for tile in self._places if tile not in found}
        return TileDigests(found | several)

    def _at(self, tile: int) -> tuple[Any, ...]:
        try:
            return self._places[tile]
        except KeyError:
            raise InvalidArgument(f"tile {tile} does not belong to this shard") from None


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
