"""Digests as values: the parts of a row add up to the whole, modulo 2^64 each."""

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

Digest: TypeAlias = tuple[int, int]

_WORD: Final = 1 << 64


def digest_sum(parts: Iterable[Digest]) -> Digest:
    """Return the digest of what the parts make up together."""
    first = second = 0
    for one, other in parts:
        first += one
        second += other
    return first % _WORD, second % _WORD


class TileDigests:
    """The digest of each tile of a row, and of the row: kept so that only what changes is read.

    One thread uses it.
    """

    def __init__(self, parts: Iterable[Digest]) -> None:
        self._parts = list(parts)
        self._total = digest_sum(self._parts)

    @property
    def total(self) -> Digest:
        """Return the digest of the row."""
        return self._total

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, tile: int) -> Digest:
        return self._parts[tile]

    def total_with(self, changes: Mapping[int, Digest]) -> Digest:
        """Return what the total would be if these tiles had these digests."""
        first, second = self._total
        for tile, (one, other) in changes.items():
            before = self._parts[tile]
            first += one - before[0]
            second += other - before[1]
        return first % _WORD, second % _WORD

    def update(self, changes: Mapping[int, Digest]) -> None:
        """Let these tiles have these digests."""
        self._total = self.total_with(changes)
        for tile, part in changes.items():
            self._parts[tile] = part
