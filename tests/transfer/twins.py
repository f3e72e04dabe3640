"""The codec and its reference side by side: what one says, the other must say."""

from typing import Any

import numpy as np
import numpy.typing as npt

from rose import _core
from rose.transfer import Delta
from rose.transfer.backend import HostBackend
from tests.reference import delta as reference

Bits = npt.NDArray[np.uint16]
DENSE, WIDE = 16_384, 65_536
ISAS = _core.isa_names()  # all that this machine has

# At the edges of words, vectors and tiles of the twins, and two primes.
SIZES = [0, 1, 3, 4, 31, 32, 33, 63, 65, 127, 1021]
# Zeros, subnormals, one and its neighbours, infinities, NaNs with payloads, both ends of the range.
SPECIAL = [0x0000, 0x8000, 0x0001, 0x007F, 0x0080, 0x3F7F, 0x3F80, 0x3F81, 0x7F7F, 0x7F80]
SPECIAL += [0x7F81, 0x7FC0, 0x7FFF, 0xFF80, 0xFFC1, 0xFFFE, 0xFFFF]


def unaligned(values: Any) -> Bits:
    """Return a copy that starts 2 bytes behind a border of 64."""
    room = np.empty(len(values) * 2 + 128, np.uint8)
    start = -room.ctypes.data % 64 + 2
    bits = room[start : start + 2 * len(values)].view(np.uint16)
    bits[:] = values
    return bits


def as_delta(model: reference.Delta, digest: tuple[int, int] = (0, 0)) -> Delta:
    entries = np.array(model.entries, np.uint64)
    payload = np.array(model.payload, np.uint32)
    return Delta(model.count, model.block_elements, entries, payload, digest)


def as_model(delta: Delta) -> reference.Delta:
    entries, payload = delta.entries.tolist(), delta.payload.tolist()
    return reference.Delta(delta.count, delta.block_elements, entries, payload)


def same(one: Delta, other: Delta) -> bool:
    return one.to_bytes() == other.to_bytes()


def pack_both(
    new: Bits, old: Bits, *, isa: str, block_elements: int = WIDE, threshold: int = 0
) -> tuple[Delta, Bits]:
    """Pack by twin and reference, compare all they say, and return the delta and the new shadow."""
    shadow, model_shadow = unaligned(old), old.copy()
    fresh = unaligned(new)
    delta = HostBackend(isa=isa).delta_pack(
        fresh, shadow, block_elements=block_elements, threshold=threshold
    )
    model = reference.pack(new, model_shadow, block_elements=block_elements, threshold=threshold)
    assert delta.entries.tolist() == model.entries
    assert delta.payload.tolist() == model.payload
    assert shadow.tolist() == model_shadow.tolist()
    assert delta.digest == reference.digest(model_shadow)
    assert fresh.tolist() == new.tolist()
    return delta, shadow
