"""Memory of a publisher's shadow that receivers on the same host read directly.

It is a memfd: it has no name in /dev/shm, so nothing is left when the process dies.
"""

import fcntl
import mmap
import os
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rose.transfer.manifest import TILE_MAC_BYTES

NOWHERE: Final = -1
_ALIGNMENT: Final = 64
# Receivers can neither resize the memory nor write to it. Python has no name for
# F_SEAL_FUTURE_WRITE, which leaves only the mapping of this process writable.
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | 0x10 | fcntl.F_SEAL_SEAL


@dataclass(frozen=True, slots=True)
class SharedTiles:
    """Memory with tiles. Its owner may change it at any time, so a reader compares digests.

    Args:
        fd: descriptor of the memory, read-only; open while `owner` exists.
        owner: owner of the descriptor.
        offsets: offset of each tile's elements, in bytes; `NOWHERE` if they are not there.
    """

    fd: int
    owner: object
    offsets: Sequence[int]


class ShadowMemory:
    """Makes copies of rows in one memfd; other copies where that is not possible.

    Args:
        rows: rows that will be copied: NumPy arrays, or torch tensors on a GPU.
    """

    def __init__(self, rows: Iterable[Any]) -> None:
        nbytes = sum(_aligned(row.nbytes) for row in rows if isinstance(row, np.ndarray))
        nbytes += TILE_MAC_BYTES  # a reader takes the bytes behind a tile for its MAC
        self._fd: int | None = None
        self._memory = np.empty(0, np.uint8)
        self._used = 0
        with suppress(OSError):
            self._open(nbytes)

    def _open(self, nbytes: int) -> None:
        own = os.memfd_create("rose-shadow", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.truncate(own, nbytes)
            memory = np.frombuffer(mmap.mmap(own, nbytes), np.uint8)
            fcntl.fcntl(own, fcntl.F_ADD_SEALS, _SEALS)
            self._fd = os.open(f"/proc/self/fd/{own}", os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._fd)
            self._memory = memory
        finally:
            os.close(own)

    def copy(self, row: Any) -> Any:
        """Return a copy of a row: in this memory, or of the row's own kind if there is no room."""
        if not isinstance(row, np.ndarray):
            return row.clone()
        end = self._used + row.nbytes
        if end > len(self._memory):
            return row.copy()
        copy: npt.NDArray[Any] = self._memory[self._used : end].view(row.dtype).reshape(row.shape)
        copy[:] = row
        self._used = _aligned(end)
        return copy

    def tiles(self, rows: Iterable[Any]) -> SharedTiles | None:
        """Return where tiles are in this memory; None without a memory.

        Args:
            rows: elements of each tile; those in this memory share it.
        """
        if self._fd is None:
            return None
        return SharedTiles(self._fd, self, tuple(map(self._offset, rows)))

    def _offset(self, row: Any) -> int:
        offset = int(row.ctypes.data - self._memory.ctypes.data)
        return offset if 0 <= offset < len(self._memory) else NOWHERE


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
