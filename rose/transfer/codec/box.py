"""Memory layout of a tensor's elements, and whether elements of one or two tensors overlap."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rose import _core

# Step limit of NumPy's search for shared memory, which can take exponential time; the boxes of
# tensors need a few steps. NumPy accepts any number here, but its type stubs list only two.
_SEARCH_STEPS: Final[Any] = 100_000


@dataclass(frozen=True, slots=True)
class Box:
    """Memory layout of elements in row-major order. Equal boxes list the same bytes in one order.

    Args:
        address: address of the first element.
        shape: sizes of the dimensions, all > 1 and as few as possible; (0,) for an empty box.
        strides: bytes from one index to the next, per dimension.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item_bytes: int

    @classmethod
    def of(cls, bits: Any) -> "Box":
        """Return the box of a NumPy array or a torch tensor, on any device."""
        if isinstance(bits, np.ndarray):
            address, strides = _core.address_of(bits), bits.strides
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
        """True if the box has no elements."""
        return self.shape == (0,)

    @property
    def last(self) -> int:
        """Return the address after the last byte."""
        if self.is_empty:
            return self.address
        steps = zip(self.shape, self.strides, strict=True)
        return self.address + self.item_bytes + sum((size - 1) * stride for size, stride in steps)

    @property
    def may_repeat(self) -> bool:
        """True if elements may share memory, so that an in-place change would be made twice.

        True for a stride of 0; false for slices, transposes and windows without overlap.
        """
        behind = self.item_bytes
        for stride, size in sorted(zip(self.strides, self.shape, strict=True)):
            if stride < behind:
                return True
            behind += (size - 1) * stride
        return False

    def meets(self, other: "Box") -> bool:
        """Return True if two boxes share a byte; interleaved columns of one matrix do not."""
        if self.last <= other.address or other.last <= self.address:
            return False
        try:
            return np.shares_memory(
                _Outline(self).array, _Outline(other).array, max_work=_SEARCH_STEPS
            )
        except np.exceptions.TooHardError:
            return True  # undecided within the limit: assume that the boxes share a byte


def overlapping(boxes: Sequence[Box]) -> tuple[int, int] | None:
    """Return the indices of two boxes that share a byte; None if no two do."""
    order = sorted(range(len(boxes)), key=lambda at: boxes[at].address)
    for place, one in enumerate(order):
        for other in order[place + 1 :]:
            if boxes[other].address >= boxes[one].last:
                break
            if boxes[one].meets(boxes[other]):
                return one, other
    return None


class _Outline:
    """A box as an array whose elements are never read, for NumPy's comparison of addresses."""

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
    """Drop dimensions of size 1, and merge neighbours that a single stride can cover."""
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
