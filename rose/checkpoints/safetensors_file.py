"""A safetensors file, mapped: raw bits of any element type, and no more memory than is looked at.

The safetensors package gives bf16 and fp8 to torch only; here bits are enough.
"""

import mmap
import os
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rose.checkpoints.safetensors_header import (
    HEADER_BYTES_MAX,
    LENGTH_BYTES,
    StoredTensor,
    read_header,
)
from rose.errors import CorruptData, InvalidArgument
from rose.whole_file import open_input

Units = npt.NDArray[Any]
"""A row of uint8, uint16 or uint32."""

_ENDING: Final = ".safetensors"


class SafetensorsFile:
    """One file, open for reading; it stays mapped as long as this or a view of it lives.

    Nobody may shorten the file meanwhile: reading behind its end kills a process.

    Args:
        path: of the file.

    Raises:
        InvalidArgument: it cannot be read.
        CorruptData: it is not a safetensors file, or is cut off.
    """

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        try:
            with open_input(path) as file:
                size = os.fstat(file.fileno()).st_size
                if size < LENGTH_BYTES:
                    raise CorruptData(f"{path} has {size} bytes: too few to be a safetensors file")
                self._map: Final = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            what = error.strerror if isinstance(error, OSError) else error
            raise InvalidArgument(f"cannot read {path}: {what or error}") from None
        header_bytes = int.from_bytes(self._map[:LENGTH_BYTES], "little")
        if header_bytes > HEADER_BYTES_MAX:
            raise CorruptData(
                f"{path} is not a safetensors file: it begins with a header of {header_bytes} "
                f"bytes, and {HEADER_BYTES_MAX} is the most there may be"
            )
        self._data_at: Final = LENGTH_BYTES + header_bytes
        if self._data_at > size:
            raise CorruptData(f"{path} is cut off inside its header")
        self.header: Final = bytes(self._map[LENGTH_BYTES : self._data_at])
        self.tensors: Final = read_header(self.header, str(path))
        data_bytes = self.tensors[-1].end if self.tensors else 0
        if self._data_at + data_bytes != size:
            raise CorruptData(
                f"{path} has {size - self._data_at} bytes of tensors, "
                f"its header speaks of {data_bytes}"
            )

    def units(self, tensor: StoredTensor, first: int, count: int) -> Units:
        """Return a part of a tensor as numbers of `tensor.unit`, read-only.

        A view of the file, or a copy where the file does not hold the tensor at a border of units.
        """
        unit = np.dtype(tensor.unit)
        at = self.offset(tensor, first)
        if at % unit.itemsize == 0:
            return np.frombuffer(self._map, unit, count, at)
        content = np.frombuffer(self._map, np.uint8, count * unit.itemsize, at)
        copy: Units = content.copy().view(unit)
        copy.setflags(write=False)
        return copy

    def offset(self, tensor: StoredTensor, first: int) -> int:
        """Return where in the file a unit of a tensor is."""
        return self._data_at + tensor.begin + first * tensor.stored.unit_bytes

    def forget(self, tensor: StoredTensor, first: int, count: int) -> None:
        """Let the pages of a part go from this process; they are read again when looked at."""
        begin = self.offset(tensor, first)
        end = self.offset(tensor, first + count)
        begin -= begin % mmap.PAGESIZE  # A neighbour's page too: it costs one fault.
        if end > begin:
            self._map.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def is_safetensors(path: Path) -> bool:
    """Say whether a file has the name of one."""
    return path.name.endswith(_ENDING)
