"""The tiles of a checkpoint on disk, read and written by calls."""

import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from rose.checkpoints.live import LiveCheckpoint
from rose.checkpoints.tiling import Tiling
from rose.errors import Unavailable
from rose.transfer.codec.delta import Delta
from rose.transfer.codec.operations import delta_apply, digest
from rose.transfer.digests import Digest
from rose.transfer.plan.spec import Region


class LiveTiles:
    """A `Target` of commits.

    Another process may cut a file at any time. Behind its new end an access of a mapping would end
    this process; a call fails, and the failure is one sentence.

    Args:
        live: the files.
        tiling: how they are cut into tiles.
    """

    def __init__(self, live: LiveCheckpoint, tiling: Tiling) -> None:
        self._live, self._tiling = live, tiling

    def bits(self, tile: int) -> Any:
        """Return a copy of a tile.

        Raises:
            Unavailable: the file was cut, or cannot be read.
        """
        place = self._tiling.place(tile)
        row = np.empty(place.region.shape, self._live.unit(place.tensor))
        for offset, part in self._runs(tile, row):
            at = 0
            while at < len(part):
                got = self._call(tile, os.preadv, [part[at:]], offset + at)
                if got == 0:
                    raise Unavailable(self._live.cut(place.tensor))
                at += got
        return row

    def digest(self, tile: int) -> Digest:
        """Read a tile; raises as `bits`."""
        return digest(self.bits(tile))

    def apply(self, tile: int, delta: Delta, *, undo: bool) -> None:
        """Change a tile; raises as `bits`, and as `delta_apply`."""
        row = self.bits(tile)
        delta_apply(row, delta, undo=undo)
        for offset, part in self._runs(tile, row):
            at = 0
            while at < len(part):
                at += self._call(tile, os.pwritev, [part[at:]], offset + at)

    def _call(self, tile: int, call: Any, parts: list[memoryview], offset: int) -> int:
        tensor = self._tiling.place(tile).tensor
        try:
            return int(call(self._live.fileno(tensor), parts, offset))
        except OSError as error:
            raise Unavailable(
                f"{self._live.path(tensor)} cannot be read or written: {error.strerror or error}"
            ) from error

    def _runs(self, tile: int, row: Any) -> Iterator[tuple[int, memoryview]]:
        """Return where in the file each run of a tile begins, and the bytes of `row` it stands for.

        Behind the last dimension that is cut, a region lies in one piece.
        """
        place = self._tiling.place(tile)
        content = memoryview(row.reshape(-1).view(np.uint8))
        outer = _outer(place.region, place.shape)
        size = len(content) // math.prod(outer)
        begin = self._live.offset(place.tensor)
        for at, first in enumerate(_firsts(place.region, place.shape, outer)):
            yield begin + first * row.itemsize, content[at * size : (at + 1) * size]


def _outer(region: Region, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes of a region in the dimensions before those that lie in one piece."""
    inner = len(shape)
    while inner > 0 and region.shape[inner - 1] == shape[inner - 1]:
        inner -= 1
    return region.shape[: max(0, inner - 1)]


def _firsts(region: Region, shape: tuple[int, ...], outer: tuple[int, ...]) -> Iterator[int]:
    """Return the first unit of each run, counted in the tensor; `outer` is that of `_outer`."""
    for index in np.ndindex(*outer):
        inside = (*index, *(0 for _ in shape[len(outer) :]))
        first = 0
        for at, offset, size in zip(inside, region.offset, shape, strict=True):
            first = first * size + at + offset
        yield first
