"""Tiles: the pieces that a row of weights is sent, applied and undone in."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rose.errors import InvalidArgument
from rose.units import ceil_div

# The frame of a tile this long is at most half of `CHUNK_BYTES_MAX`, however much of it changes.
TILE_ELEMENTS: Final = 1 << 20
# A digest is taken over words of four elements.
_WORD_ELEMENTS: Final = 4


@dataclass(frozen=True, slots=True)
class Tile:
    """A piece of a row of 16-bit elements.

    Args:
        index: its place among the tiles.
        first: its first element in the row.
        count: its elements, > 0.
    """

    index: int
    first: int
    count: int

    @property
    def where(self) -> slice:
        """Return its place in the row."""
        return slice(self.first, self.first + self.count)


@dataclass(frozen=True, slots=True)
class Tiles:
    """How a row is cut; both sides of a transfer cut alike.

    Args:
        count: elements of the row.
        tile_elements: of every tile but the last, which may be shorter.
    """

    count: int
    tile_elements: int = TILE_ELEMENTS

    def __post_init__(self) -> None:
        """Refuse what cannot be cut.

        Raises:
            InvalidArgument: the sentence names the value.
        """
        if not 0 <= self.count < 1 << 48:
            raise InvalidArgument(f"count {self.count} must be from 0 to 2^48 - 1 elements")
        if not 0 < self.tile_elements <= TILE_ELEMENTS or self.tile_elements % _WORD_ELEMENTS:
            raise InvalidArgument(
                f"tile_elements {self.tile_elements} must be a multiple of {_WORD_ELEMENTS} "
                f"from {_WORD_ELEMENTS} to {TILE_ELEMENTS}"
            )

    @classmethod
    def of(cls, count: int, tile_elements: int = TILE_ELEMENTS) -> "Tiles":
        """Cut a row of `count` elements."""
        return cls(count, tile_elements)

    def __len__(self) -> int:
        return ceil_div(self.count, self.tile_elements)

    def __getitem__(self, index: int) -> Tile:
        if not 0 <= index < len(self):
            raise IndexError(f"tile {index} of {len(self)}")
        first = index * self.tile_elements
        return Tile(index, first, min(self.tile_elements, self.count - first))

    def __iter__(self) -> Iterator[Tile]:
        return (self[index] for index in range(len(self)))
