"""Digests as values: tile digests add up to the digest of the weights, in any order.

A tile is digested with first index 0 and seed 0, as in the frames of deltas. Each half of a
tile's digest is mixed with the tile's index before it is added, so that swapped tiles are detected.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

Digest: TypeAlias = tuple[int, int]

_WORD: Final = 1 << 64
_MASK: Final = _WORD - 1
# Strides, and the mixer below, are those of the digest of elements; see docs/protocol.md.
_STRIDES: Final = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)


def hexadecimal(digest: Digest) -> str:
    """Return a digest as 32 hexadecimal digits."""
    return "".join(f"{part:016x}" for part in digest)


def keyed(tile: int, digest: Digest) -> Digest:
    """Return the term that a tile's digest adds to the digest of the weights."""
    first, second = digest
    step = tile + 1
    return _mixed(first + step * _STRIDES[0]), _mixed(second + step * _STRIDES[1])


def _mixed(x: int) -> int:
    x &= _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def digest_sum(parts: Iterable[Digest]) -> Digest:
    """Return the sum of keyed digests, modulo 2^64 in each half."""
    first = second = 0
    for one, other in parts:
        first += one
        second += other
    return first % _WORD, second % _WORD


class TileDigests:
    """Digests of a set of tiles, and their total, which `update` adjusts without reading a tile.

    Not thread-safe.

    Args:
        parts: digests by tile, of all tiles or of the tiles that a receiver subscribes to.
    """

    def __init__(self, parts: Mapping[int, Digest]) -> None:
        self._parts = dict(parts)
        self._total = digest_sum(keyed(tile, part) for tile, part in self._parts.items())

    @property
    def total(self) -> Digest:
        """Return the digest of all these tiles together."""
        return self._total

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[int]:
        return iter(self._parts)

    def __contains__(self, tile: int) -> bool:
        return tile in self._parts

    def __getitem__(self, tile: int) -> Digest:
        return self._parts[tile]

    def total_with(self, changes: Mapping[int, Digest]) -> Digest:
        """Return the total after `update(changes)`."""
        first, second = self._total
        for tile, digest in changes.items():
            (one, other), before = keyed(tile, digest), keyed(tile, self._parts[tile])
            first += one - before[0]
            second += other - before[1]
        return first % _WORD, second % _WORD

    def update(self, changes: Mapping[int, Digest]) -> None:
        """Replace the digests of the given tiles."""
        self._total = self.total_with(changes)
        self._parts.update(changes)

    def copy(self) -> "TileDigests":
        """Return a copy, for another thread."""
        return TileDigests(self._parts)
