"""A mapped safetensors file: raw bits of any element type, loaded only where they are read.

The safetensors package reads and checks the header, but gives bf16 and fp8 bits to torch only.
"""

import mmap
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from rose.errors import CorruptData, InvalidArgument
from rose.transfer.tensors import STORED_DTYPES, StoredTensor
from rose.whole_file import open_input

Units = npt.NDArray[Any]
"""(n,) uint8, uint16 or uint32."""

LENGTH_BYTES: Final = 8
"""A file starts with the length of its header, a number of this many bytes."""


class SafetensorsFile:
    """One file, open for reading.

    The file stays mapped as long as this object or any array of `units` lives. It must not be
    shortened meanwhile: a read past the end of the file kills the process.

    Raises:
        InvalidArgument: the file cannot be read.
        CorruptData: the file is cut off, or not a safetensors file.
    """

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self._map: Final = mapped(path)
        at = LENGTH_BYTES + int.from_bytes(self._map[:LENGTH_BYTES], "little")
        self.header: Final = self._map[LENGTH_BYTES:at]
        tensors = []
        for name, dtype, shape in _read_header(path):
            if dtype not in STORED_DTYPES:
                raise CorruptData(f"{name!r} of {path} has the dtype {dtype}, unknown to rose")
            tensors.append(StoredTensor(name, dtype, shape, at))
            at += tensors[-1].nbytes
        if at != len(self._map):
            raise CorruptData(f"{path} changed while it was opened")
        self.tensors: Final = tuple(tensors)

    def units(self, tensor: StoredTensor, first: int, count: int) -> Units:
        """Return units `first` to `first + count` of a tensor, read-only.

        The result is a view of the file, or a copy if the tensor is not aligned to its units.
        """
        unit = np.dtype(tensor.stored.unit)
        at = tensor.begin + first * unit.itemsize
        if at % unit.itemsize == 0:
            return np.frombuffer(self._map, unit, count, at)
        content = np.frombuffer(self._map, np.uint8, count * unit.itemsize, at)
        copy: Units = content.copy().view(unit)
        copy.setflags(write=False)
        return copy

    def forget(self, tensor: StoredTensor, first: int, count: int) -> None:
        """Release the pages of these units; the next access reads them again."""
        begin = tensor.begin + first * tensor.stored.unit_bytes
        end = begin + count * tensor.stored.unit_bytes
        # The first page may also hold a neighbouring tensor, whose next access costs a page fault.
        begin -= begin % mmap.PAGESIZE
        if end > begin:
            self._map.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def mapped(path: Path) -> mmap.mmap:
    """Map a file for reading.

    Raises:
        InvalidArgument: the file cannot be read, or is empty.
    """
    try:
        with open_input(path) as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) else error
        raise InvalidArgument(f"cannot read {path}: {what or error}") from None


def _read_header(path: Path) -> list[tuple[str, str, tuple[int, ...]]]:
    """Return name, dtype and shape of each tensor, in the order of their bytes."""
    try:
        with safe_open(path, "numpy") as file:
            found = [(name, file.get_slice(name)) for name in file.offset_keys()]
            return [(name, one.get_dtype(), tuple(one.get_shape())) for name, one in found]
    except SafetensorError as error:
        sentence = " ".join(str(error).split())
        raise CorruptData(f"{path} is not a sound safetensors file: {sentence}") from None
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror or error}") from None
