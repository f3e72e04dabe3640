"""Codecs on a GPU as twins for `tests.codec_laws`; outputs are poisoned before each call."""

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tests.gpu.memory import POISON, Buffer, Memory
from tests.reference.delta import Ages, Bits, Delta

DEFERRED: Final = 15
BINS: Final = (1 << 15) + 1  # bins of the top-k histogram: one per key, and one for due changes
_POISON_WORD: Final = int.from_bytes(bytes([POISON]) * 4, "little")

# Sizes of the inner three dimensions, and strides of all four, in elements.
Box = tuple[int, ...]


@dataclass
class Placed:
    """An array in device memory, and its box there; None for a row."""

    buffer: Buffer
    address: int
    box: Box | None
    array: Bits

    def fetch(self) -> None:
        """Copy the device memory back to where the array came from."""
        if self.box is None:
            self.array[...] = self.buffer.read(self.array.dtype)
            return
        owner: Any = self.array.base
        owner.reshape(-1)[...] = self.buffer.read(owner.dtype)


@dataclass
class Packed:
    """Result of a pack.

    Args:
        delta: the delta; a deferred block is an empty one.
        words: number of words that all blocks need.
        digest: digest of the shadow after packing.
        deferred: numbers of the deferred blocks.
    """

    delta: Delta
    words: int
    digest: tuple[int, int]
    deferred: list[int]


def box_of(array: Bits) -> Box | None:
    if array.ndim == 1 and array.flags.c_contiguous:
        return None
    missing = 4 - array.ndim
    sizes = [1] * missing + list(array.shape)
    strides = [0] * missing + [stride // array.itemsize for stride in array.strides]
    return (*sizes[1:], *strides)


class CudaTwin:
    """The embedded kernels on a stream of rose's; memory without a framework.

    Args:
        device: GPU of the kernels.
        skew_bytes: distance of each array from an aligned address.
    """

    is_whole = False
    place = (8, 0xFEDCBA9876543210)

    def __init__(self, device: Any, *, skew_bytes: int = 0) -> None:
        from rose._core import CudaStream, DeviceCodec

        self.memory = Memory()
        self._skew_bytes = skew_bytes
        self._stream = CudaStream.create(device, highest=False)
        self._codec = DeviceCodec.create(device)

    def _ran(self) -> None:
        self._stream.wait(timeout_ms=20_000)

    def _placed(self, array: Bits) -> Placed:
        skew_bytes = self._skew_bytes // array.itemsize * array.itemsize
        box = box_of(array)
        owner: Any = array if box is None else array.base
        buffer = self.memory.uploaded(owner.reshape(-1), skew_bytes=skew_bytes)
        offset = array.ctypes.data - owner.ctypes.data
        return Placed(buffer, buffer.address + offset, box, array)

    def _digest(self, bits: Placed, sums: Buffer, first_index: int, seed: int) -> None:
        self._codec.digest(
            bits=bits.address,
            width=8 * bits.array.itemsize,
            count=bits.array.size,
            sums=sums.address,
            stream=self._stream.handle,
            bits_box=bits.box,
            first_index=first_index,
            seed=seed,
        )

    def pack_into(
        self,
        new: Bits,
        shadow: Bits,
        *,
        block_elements: int,
        arena_words: int | None = None,
        threshold: int = 0,
        ages: Ages | None = None,
    ) -> Packed:
        """Pack into an arena with room for `arena_words`, by default for any delta."""
        memory, (first_index, seed) = self.memory, self.place
        blocks = math.ceil(new.size / block_elements)
        if arena_words is None:
            arena_words = blocks * block_elements * new.itemsize // 4
        bits, moved = self._placed(new), self._placed(shadow)
        least = memory.uploaded(np.array([threshold], np.uint32))
        aged = None if ages is None else memory.uploaded(ages.counts)
        arena = memory.buffer(4 * arena_words)
        # Without blocks nothing is launched.
        unknown = np.full(blocks + 2, -1 if blocks else 0, np.int64)
        ends, newest = memory.uploaded(unknown[1:]), memory.uploaded(unknown[:1])
        entries, sums = memory.buffer(8 * blocks), memory.uploaded(np.zeros(2, "u8"))
        memory.synchronize()
        self._digest(moved, sums, first_index, seed)
        self._codec.delta_pack(
            bits=[bits.address],
            shadow=[moved.address],
            width=[8 * new.itemsize],
            count=[new.size],
            entries=[entries.address],
            offsets=[ends.address],
            digest=[sums.address],
            bits_box=[bits.box],
            shadow_box=[moved.box],
            block_elements=block_elements,
            arena=arena.address,
            arena_words=arena_words,
            newest=newest.address,
            stream=self._stream.handle,
            threshold=least.address if threshold else 0,
            ages=0 if aged is None else aged.address,
            age_limit=255 if ages is None else ages.limit,
            first_index=first_index,
            seed=seed,
        )
        self._ran()
        before = new.copy()
        bits.fetch()
        assert (new == before).all(), "the new weights are only read"
        moved.fetch()
        if ages is not None and aged is not None:
            ages.counts[...] = aged.read(np.uint8)
        table = entries.read(np.uint64).tolist()
        deferred = [at for at, entry in enumerate(table) if entry & 15 == DEFERRED]
        sent = [0 if entry & 15 == DEFERRED else entry for entry in table]
        words = arena.read(np.uint32)[: sum(entry >> 44 for entry in sent)].tolist()
        first, second = sums.read(np.uint64).tolist()
        return Packed(
            Delta(new.size, block_elements, sent, words, 8 * new.itemsize),
            int(ends.read(np.int64)[-1]),
            (first, second),
            deferred,
        )

    def pack(self, new: Bits, shadow: Bits, **options: Any) -> tuple[Delta, tuple[int, int]]:
        packed = self.pack_into(new, shadow, **options)
        assert packed.deferred == []
        assert packed.words == len(packed.delta.payload)
        return packed.delta, packed.digest

    def _table(self, delta: Delta) -> tuple[Buffer, Buffer, Buffer]:
        sizes = [entry >> 44 for entry in delta.entries]
        return (
            self.memory.uploaded(np.array(delta.entries, np.uint64)),
            self.memory.uploaded(np.cumsum([0, *sizes])[:-1].astype(np.uint64)),
            self.memory.uploaded(np.array(delta.payload, np.uint32)),
        )

    def apply(self, delta: Delta, weights: Bits, *, undo: bool = False) -> int | None:
        entries, offsets, payload = self._table(delta)
        held = self._placed(weights)
        bad_block = self.memory.uploaded(np.array([-1], np.int64))
        self.memory.synchronize()
        self._codec.delta_apply(
            entries=[entries.address],
            offsets=[offsets.address],
            payload=[payload.address],
            payload_words=[len(delta.payload)],
            weights=[held.address],
            width=[delta.width],
            count=[weights.size],
            digest=[0],
            weights_box=[held.box],
            block_elements=[delta.block_elements],
            bad_block=bad_block.address,
            stream=self._stream.handle,
            undo=undo,
        )
        self._ran()
        held.fetch()
        assert payload.read(np.uint32).tolist() == delta.payload, "the payload is only read"
        return lowest_of(bad_block)

    def unpack(self, delta: Delta, base: Bits) -> tuple[list[int], list[int], int | None]:
        memory = self.memory
        changes = [entry >> 4 & 0xFFFFF for entry in delta.entries]
        total = sum(changes)
        entries, offsets, payload = self._table(delta)
        firsts = memory.uploaded(np.cumsum([0, *changes])[:-1].astype(np.uint64))
        bits = self._placed(base)
        positions, values = memory.buffer(8 * total), memory.buffer(base.itemsize * total)
        bad_block = memory.uploaded(np.array([-1], np.int64))
        memory.synchronize()
        self._codec.topk_unpack(
            entries=entries.address,
            offsets=offsets.address,
            first_outputs=firsts.address,
            payload=payload.address,
            payload_words=len(delta.payload),
            base=bits.address,
            width=delta.width,
            count=base.size,
            block_elements=delta.block_elements,
            positions=positions.address,
            values=values.address,
            output_count=total,
            bad_block=bad_block.address,
            stream=self._stream.handle,
            base_box=bits.box,
        )
        self._ran()
        found = positions.read(np.int64).tolist(), values.read(base.dtype).tolist()
        return (*found, lowest_of(bad_block))

    def threshold(self, new: Bits, shadow: Bits, *, budget: int, ages: Ages | None = None) -> int:
        memory = self.memory
        bits, old = self._placed(new), self._placed(shadow)
        aged = None if ages is None else memory.uploaded(ages.counts)
        histogram = memory.uploaded(np.zeros(BINS, np.uint64))
        threshold = memory.buffer(4)
        memory.synchronize()
        self._codec.topk_histogram(
            bits=bits.address,
            shadow=old.address,
            count=new.size,
            histogram=histogram.address,
            stream=self._stream.handle,
            ages=0 if aged is None else aged.address,
            age_limit=255 if ages is None else ages.limit,
        )
        self._codec.topk_threshold(
            histogram=histogram.address,
            budget=budget,
            threshold=threshold.address,
            stream=self._stream.handle,
        )
        self._ran()
        return int(threshold.read(np.uint32)[0])

    def digest(self, bits: Bits, *, first_index: int = 0, seed: int = 0) -> tuple[int, int]:
        content, sums = self._placed(bits), self.memory.uploaded(np.zeros(2, np.uint64))
        self.memory.synchronize()
        self._digest(content, sums, first_index, seed)
        self._ran()
        first, second = sums.read(np.uint64).tolist()
        return first, second


def lowest_of(bad_block: Buffer) -> int | None:
    number = int(bad_block.read(np.int64)[0])
    return None if number == -1 else number


class OnGpu:
    """A copy of an array on the GPU, as a tensor among poisoned elements.

    Args:
        bits: elements; an array that is not one row becomes a box in a larger tensor.
        skew: number of elements before the first one, beyond the guard.
    """

    GUARD: Final = 64

    def __init__(self, bits: Bits, skew: int = 0) -> None:
        import torch

        self._poison = _POISON_WORD & ((1 << 8 * bits.itemsize) - 1)
        is_row = bits.ndim == 1
        room = tuple(size + (0 if is_row else 3) for size in bits.shape)
        before = self.GUARD + skew
        whole = np.full(before + math.prod(room) + self.GUARD, self._poison, bits.dtype)
        inside = tuple(slice(None) if is_row else slice(1, 1 + size) for size in bits.shape)
        self._at = (slice(before, len(whole) - self.GUARD), room, inside)
        self._inner(whole)[...] = bits
        self._guarded = torch.from_numpy(whole.view(f"i{bits.itemsize}")).cuda()
        self.tensor = self._inner(self._guarded)

    def _inner(self, whole: Any) -> Any:
        part, room, inside = self._at
        return whole[part].reshape(room)[inside]

    def bits(self) -> Bits:
        signed = self._guarded.cpu().numpy()
        whole = signed.view(f"u{signed.itemsize}")
        content: npt.NDArray[Any] = self._inner(whole).copy()
        self._inner(whole)[...] = self._poison
        assert (whole == self._poison).all(), "something was written around the tensor"
        return content.reshape(-1)
