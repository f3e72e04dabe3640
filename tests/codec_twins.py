"""Codecs of rose as twins: `tests.codec_laws.Twin` over the class of one kind of device."""

import re
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from rose import _core
from rose.errors import CorruptData
from rose.transfer import Delta
from rose.transfer.codec.backend import HostCodec
from tests.reference import delta as reference
from tests.reference.delta import Ages, Bits


class Laid(Protocol):
    """A copy of an array where a codec reads and writes it.

    Attributes:
        tensor: what the codec takes.
    """

    tensor: Any

    def bits(self) -> Bits:
        """Return the elements; fail if anything was written around them."""


Lay = Callable[[Bits], Laid]


def as_delta(model: reference.Delta) -> Delta:
    entries = np.array(model.entries, np.uint64)
    payload = np.array(model.payload, np.uint32)
    return Delta(model.count, model.block_elements, model.width, entries, payload, (0, 0), (0, 0))


def damaged_block(refusal: CorruptData) -> int:
    """Return the block that an error names."""
    found = re.search(r"block (\d+) of the delta", str(refusal))
    assert found is not None, refusal
    return int(found.group(1))


class CodecTwin:
    """A codec class as a twin.

    Args:
        codec: class with the operations of `HostCodec`.
        lay: copies an array to the device of the codec.
    """

    is_whole = True
    place = (0, 0)

    def __init__(self, codec: Any, lay: Lay) -> None:
        self.codec = codec
        self.lay = lay

    def pack(
        self,
        new: Bits,
        shadow: Bits,
        *,
        block_elements: int,
        threshold: int = 0,
        ages: Ages | None = None,
    ) -> tuple[reference.Delta, tuple[int, int]]:
        fresh, held = self.lay(new), self.lay(shadow)
        aged = None if ages is None else self.lay(ages.counts)
        base = reference.digest(shadow.reshape(-1))
        (packed,) = self.codec.delta_pack(
            [fresh.tensor],
            [held.tensor],
            block_elements=block_elements,
            base_digests=[None],
            threshold=threshold,
            ages=None if aged is None else aged.tensor,
            age_limit=255 if ages is None else ages.limit,
        )
        assert packed.base_digest == base
        assert np.array_equal(fresh.bits(), new.reshape(-1)), "the new weights are only read"
        shadow[...] = held.bits().reshape(shadow.shape)
        if ages is not None and aged is not None:
            ages.counts[...] = aged.bits()
        entries, payload = packed.entries.tolist(), packed.payload.tolist()
        delta = reference.Delta(new.size, block_elements, entries, payload, 8 * new.itemsize)
        return delta, packed.digest

    def apply(self, delta: reference.Delta, weights: Bits, *, undo: bool = False) -> int | None:
        held = self.lay(weights)
        try:
            self.codec.delta_apply([held.tensor], [as_delta(delta)], [""], undo=undo)
        except CorruptData as refusal:
            return damaged_block(refusal)
        finally:
            weights[...] = held.bits().reshape(weights.shape)
        return None

    def unpack(self, delta: reference.Delta, base: Bits) -> tuple[list[int], list[int], int | None]:
        held = self.lay(base)
        try:
            positions, values = self.codec.topk_unpack(held.tensor, as_delta(delta))
        except CorruptData as refusal:
            return [], [], damaged_block(refusal)
        assert np.array_equal(held.bits(), base.reshape(-1)), "the base is only read"
        assert (positions.dtype, values.dtype) == (np.int64, base.dtype)
        return positions.tolist(), values.tolist(), None

    def threshold(self, new: Bits, shadow: Bits, *, budget: int, ages: Ages | None = None) -> int:
        return int(
            self.codec.topk_threshold(
                self.lay(new).tensor,
                self.lay(shadow).tensor,
                budget=budget,
                ages=None if ages is None else self.lay(ages.counts).tensor,
                age_limit=255 if ages is None else ages.limit,
            )
        )

    def digest(self, bits: Bits) -> tuple[int, int]:
        pair: tuple[int, int] = self.codec.digest(self.lay(bits).tensor)
        return pair


class HostTwin(CodecTwin):
    """The core with one instruction set, on arrays with one layout."""

    def __init__(self, isa: str, lay: Lay) -> None:
        super().__init__(HostCodec(isa=isa), lay)
        self.isa = isa

    def digest(self, bits: Bits, *, first_index: int = 0, seed: int = 0) -> tuple[int, int]:
        return _core.digest(self.lay(bits).tensor, first_index=first_index, seed=seed, isa=self.isa)
