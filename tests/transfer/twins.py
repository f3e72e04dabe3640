"""The codec and its reference side by side: what one says, the other must say."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from rose import _core
from rose.transfer import Delta
from rose.transfer.codec.backend import HostBackend
from tests.reference import delta as reference

Bits = npt.NDArray[Any]
DENSE, WIDE = 16_384, 65_536
WIDTHS = (8, 16, 32)
ISAS = _core.isa_names()  # all that this machine has

# At the edges of words, vectors and tiles of the twins, and two primes.
SIZES = [0, 1, 3, 4, 31, 32, 33, 63, 65, 127, 1021]
# Zeros, subnormals, one and its neighbours, infinities, NaNs with payloads, both ends of the range.
SPECIAL = [0x0000, 0x8000, 0x0001, 0x007F, 0x0080, 0x3F7F, 0x3F80, 0x3F81, 0x7F7F, 0x7F80]
SPECIAL += [0x7F81, 0x7FC0, 0x7FFF, 0xFF80, 0xFFC1, 0xFFFE, 0xFFFF]


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


def as_delta(model: reference.Delta, digest: tuple[int, int] = (0, 0)) -> Delta:
    entries = np.array(model.entries, np.uint64)
    payload = np.array(model.payload, np.uint32)
    return Delta(model.count, model.block_elements, model.width, entries, payload, (0, 0), digest)


def as_model(delta: Delta) -> reference.Delta:
    entries, payload = delta.entries.tolist(), delta.payload.tolist()
    return reference.Delta(delta.count, delta.block_elements, entries, payload, delta.width)


def same(one: Delta, other: Delta) -> bool:
    return one.to_bytes() == other.to_bytes()


def pack_both(
    new: Bits,
    old: Bits,
    *,
    isa: str,
    block_elements: int = WIDE,
    threshold: int = 0,
    ages: reference.Ages | None = None,
    threads: int = 1,
    layout: Callable[[Any], Bits] = unaligned,
) -> tuple[Delta, Bits]:
    """Pack by twin and reference, compare all they say, and return the delta and the new shadow."""
    shadow, model_shadow = layout(old), old.copy()
    fresh = layout(new)
    aged = None if ages is None else layout(ages.counts)
    limit = 255 if ages is None else ages.limit
    backend = HostBackend(isa=isa)
    delta = backend.delta_pack(
        fresh,
        shadow,
        block_elements=block_elements,
        threshold=threshold,
        ages=aged,
        age_limit=limit,
        threads=threads,
    )
    assert delta.base_digest == reference.digest(old)
    model = reference.pack(
        new, model_shadow, block_elements=block_elements, threshold=threshold, ages=ages
    )
    assert delta.entries.tolist() == model.entries
    assert delta.payload.tolist() == model.payload
    assert elements(shadow) == model_shadow.tolist()
    assert delta.digest == reference.digest(model_shadow)
    assert elements(fresh) == new.tolist()
    assert aged is None or ages is None or elements(aged) == ages.counts.tolist()
    assert around(shadow) == {0x55} or layout is unaligned
    return delta, shadow


def around(box: Bits) -> set[int]:
    """Return what lies between the elements of a box, 0x55 where nobody wrote."""
    room: Any = box
    while room.base is not None:
        room = room.base
    kept = box.copy()
    box[...] = 0x55
    found = set(room.reshape(-1).tolist())
    box[...] = kept
    return found or {0x55}
