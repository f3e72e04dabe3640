"""Arrays in a GPU's pool memory, for torch and CuPy; NumPy cannot access them."""

import math
from dataclasses import dataclass

import numpy as np

from rose._core import Arbiter, Attachment, MappedWindow, Pool


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """A contiguous array in a pool; torch and CuPy use it without a copy.

    Args:
        owner: object that keeps the memory mapped.
        address: device address of the first element.
    """

    owner: Arbiter | Attachment | MappedWindow | Pool
    address: int
    shape: tuple[int, ...]
    dtype: "np.dtype[np.generic]"

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def part(self, start: int, stop: int) -> "DeviceArray":
        """Return elements `start` to `stop` of a flat array."""
        address = self.address + start * self.dtype.itemsize
        return DeviceArray(self.owner, address, (stop - start,), self.dtype)

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """Describe the array by version 3 of the protocol; the caller synchronises streams."""
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": None,
            "stream": None,
        }
