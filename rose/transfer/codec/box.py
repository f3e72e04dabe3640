"""Where the elements of a tensor lie, as numbers: what repeats a byte, and what shares one."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

# Steps of a search that has, in the worst case, no bound; boxes of tensors need a few. Any number
# will do, though the types of NumPy know two.
_SEARCH_STEPS: Final[Any] = 100_000


@dataclass(frozen=True, slots=True)
class Box:
    """Elements in row-major order; two boxes are equal if they list the same bytes in one order.

    Args:
        address: of the first element.
        shape: of as few dimensions as there can be, all larger than 1; (0,) where there is nothing.
        strides: bytes from one index to the next, of each dimension.
        item_bytes: of an element.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item_bytes: int

    @classmethod
    def of(cls, bits: Any) -> "Box":
        """Look at an array of NumPy or a tensor of torch, on whatever device."""
        if isinstance(bits, np.ndarray):
            address, strides = bits.ctypes.data, bits.strides
            item_bytes = bits.itemsize
        else:
            address, item_bytes = bits.data_ptr(), bits.element_size()
            strides = tuple(item_bytes * one for one in bits.stride())
        if 0 in bits.shape:
            return cls(0, (0,), (item_bytes,), item_bytes)
        shape, strides = _joined(tuple(bits.shape), strides)
        return cls(address, shape, strides, item_bytes)

    @property
    def is_empty(self) -> bool:
        """Whether it has no element."""
        return self.shape == (0,)

    @property
    def last(self) -> int:
        """Return the address behind the last byte."""
        if self.is_empty:
            return self.address
        steps = zip(self.shape, self.strides, strict=True)
        return self.address + self.item_bytes + sum((size - 1) * stride for size, stride in steps)

    @property
    def may_repeat(self) -> bool:
        """Whether two elements may lie in one place, so that a write would count twice.

        Slices, transposes and windows without overlap do not; a stride of 0 does.
        """
        behind = self.item_bytes
        for stride, size in sorted(zip(self.strides, self.shape, strict=True)):
            if stride < behind:
                return True
            behind += (size - 1) * stride
        return False

    def meets(self, other: "Box") -> bool:
        """Whether they share a byte; columns of one matrix lie between each other and do not."""
        if self.last <= other.address or other.last <= self.address:
            return False
        try:
            return np.shares_memory(
                _Outline(self).array, _Outline(other).array, max_work=_SEARCH_STEPS
            )
        except np.exceptions.TooHardError:
            return True  # who cannot tell refuses


class _Outline:
    """A box as an array that is never read: what NumPy needs to compare addresses."""

    def __init__(self, box: Box) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{box.item_bytes}",
            "shape": box.shape,
            "strides": box.strides,
            "data": (box.address, True),
        }
        self.array = np.asarray(self)


def _joined(
    shape: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Leave out dimensions of 1, and make one of two that go on in one stride."""
    sizes: list[int] = []
    steps: list[int] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if steps and steps[-1] == size * stride:
            sizes[-1] *= size
            steps[-1] = stride
        else:
            sizes.append(size)
            steps.append(stride)
    return tuple(sizes), tuple(steps)
