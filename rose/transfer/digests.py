"""Digests as values: tile digests add up to the digest of the weights, in any order.

A tile is digested with first index 0 and seed 0, as in the frames of deltas. Each half of a
tile's digest is mixed with the tile's index before it is added, so that swapped tiles are detected.
"""

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Digest: TypeAlias = tuple[int, int]

_WORD: Final = 1 << 64
# Strides, and the mixer below, are those of the digest of elements; see docs/protocol.md.
_STRIDES: Final = np.array([0x9E3779B97F4A7C15, 0xD1B54A32D192ED03], np.uint64)


def hexadecimal(digest: Digest) -> str:
    """Return a digest as 32 hexadecimal digits."""
    return "".join(f"{part:016x}" for part in digest)


def _mixed(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return mixed


def digest_sum(parts: Mapping[int, Digest]) -> Digest:
    """Return the digest of weights from the digests of their tiles."""
    halves = np.array(list(parts.values()), np.uint64).reshape(-1, 2)
    steps = np.fromiter(parts, np.uint64, len(parts))[:, None] + np.uint64(1)
    first, second = _mixed(halves + steps * _STRIDES).sum(0, np.uint64).tolist()
    return first, second


class TileDigests:
    """Digests of a set of tiles, and their total, which `update` adjusts without reading a tile.

    Not thread-safe.

    Args:
        parts: digests by tile, of all tiles or of the tiles that a receiver subscribes to.
    """

    def __init__(self, parts: Mapping[int, Digest]) -> None:
        self._parts = dict(parts)
        self._total: Digest | None = None  # computed when it is first asked for

    @property
    def total(self) -> Digest:
        """Return the digest of all these tiles together."""
        if self._total is None:
            self._total = digest_sum(self._parts)
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
        before = digest_sum({tile: self._parts[tile] for tile in changes})
        first, second = (
            (total + new - old) % _WORD
            for total, new, old in zip(self.total, digest_sum(changes), before, strict=True)
        )
        return first, second

    def update(self, changes: Mapping[int, Digest]) -> None:
        """Replace the digests of the given tiles."""
        if self._total is not None:
            self._total = self.total_with(changes)
        self._parts.update(changes)

    def copy(self) -> "TileDigests":
        """Return a copy, for another thread."""
        copy = TileDigests(self._parts)
        copy._total = self._total
        return copy
