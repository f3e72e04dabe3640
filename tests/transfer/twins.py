"""Arrays of weights in host memory, in several layouts, and deltas of the reference."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from rose import _core
from rose.transfer import Delta
from tests.reference import delta as reference

Bits = npt.NDArray[Any]
DENSE, WIDE = 16_384, 65_536
WIDTHS = (8, 16, 32)
ISAS = _core.isa_names()  # all that this machine has


def unaligned(values: Any) -> Bits:
    """Return a copy that starts one element behind a border of 64 bytes."""
    size = values.itemsize
    room = np.empty(len(values) * size + 128, np.uint8)
    start = -room.ctypes.data % 64 + size
    bits = room[start : start + size * len(values)].view(values.dtype)
    bits[:] = values
    return bits


def columns(values: Any) -> Bits:
    """Return a copy of which every element is three apart from the next."""
    room = np.full((len(values), 3), 0x55, values.dtype)
    room[:, 1] = values
    return room[:, 1]


def inner_box(values: Any) -> Bits:
    """Return a copy as a transposed box inside a larger tensor, as long as it has such a shape."""
    count = len(values)
    rows = next((n for n in (8, 5, 3, 2) if count % n == 0), 1)
    room = np.full((count // rows + 2, 3, rows + 1), 0x55, values.dtype)
    box = room[1:-1, 1, :rows]
    box[...] = values.reshape(box.shape)
    return box


# How the same elements can lie in memory.
LAYOUTS: dict[str, Callable[[Any], Bits]] = {
    "unaligned": unaligned,
    "columns": columns,
    "inner_box": inner_box,
}


def elements(bits: Bits) -> list[int]:
    """Return the elements in the order that the codec gives them."""
    flat: list[int] = bits.reshape(-1).tolist()
    return flat


def as_model(delta: Delta) -> reference.Delta:
    entries, payload = delta.entries.tolist(), delta.payload.tolist()
    return reference.Delta(delta.count, delta.block_elements, entries, payload, delta.width)


def same(one: Delta, other: Delta) -> bool:
    return one.to_bytes() == other.to_bytes()


def around(box: Bits) -> set[int]:
    """Return the values between the elements of a box: 0x55 where nothing was written."""
    room: Any = box
    while room.base is not None:
        room = room.base
    kept = box.copy()
    box[...] = 0x55
    found = set(room.reshape(-1).tolist())
    box[...] = kept
    return found or {0x55}


class LaidOut:
    """A copy of an array in host memory; an array with gaps is used where it lies.

    Args:
        bits: elements.
        layout: name of a layout of `LAYOUTS`.
    """

    def __init__(self, bits: Bits, layout: str) -> None:
        self._has_gaps = layout != "unaligned" and bits.flags.c_contiguous
        self.tensor = LAYOUTS[layout](bits) if bits.flags.c_contiguous else bits

    def bits(self) -> Bits:
        """Return the elements; fail if anything was written between them."""
        assert not self._has_gaps or around(self.tensor) == {0x55}
        return np.ascontiguousarray(self.tensor).reshape(-1)
