"""Memory that a process shares with its porter: frames lie there while they are carried."""

import fcntl
import mmap
import os
from typing import Final

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

from rose.closing import Closing
from rose.errors import check

_NAME: Final = "rose-bounce"


class Bounce(Closing):
    """Some bytes of memory, by a descriptor that a child inherits. It has no lock.

    Nothing else of a process is within reach of its porter. NumPy copies, without the interpreter's
    lock.

    Args:
        nbytes: how much.
        fd: of one that another process made; this object closes it.
    """

    def __init__(self, nbytes: int, fd: int | None = None) -> None:
        self.nbytes: Final = nbytes
        self.fd: Final = _memory(nbytes) if fd is None else fd
        self._bytes: npt.NDArray[np.uint8] = np.frombuffer(mmap.mmap(self.fd, nbytes), np.uint8)
        self._is_closed = False

    @property
    def address(self) -> int:
        """Return where it is in this process."""
        return int(self._bytes.ctypes.data)

    def put(self, offset: int, frame: Buffer) -> int:
        """Copy a frame to an offset; return how long it is."""
        content = np.frombuffer(memoryview(frame), np.uint8)
        check(0 <= offset <= self.nbytes - content.size, "a frame fits where it is put")
        np.copyto(self._bytes[offset : offset + content.size], content)
        return int(content.size)

    def copy(self, offset: int, nbytes: int) -> memoryview:
        """Return a copy of what lies at an offset."""
        check(0 <= offset <= self.nbytes - nbytes, "what is copied is inside")
        return memoryview(self._bytes[offset : offset + nbytes].copy())

    def close(self) -> None:
        """Close the descriptor; the memory goes with the object."""
        if not self._is_closed:
            self._is_closed = True
            os.close(self.fd)


def _memory(nbytes: int) -> int:
    """Return memory whose size nobody changes any more: a child that cut it would end us."""
    fd = os.memfd_create(_NAME, os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, nbytes)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd
