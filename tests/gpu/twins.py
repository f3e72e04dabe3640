"""The codec's twins on a GPU, from numpy to numpy: outputs are poisoned before each call."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tests.gpu.memory import POISON, Memory
from tests.reference.delta import Delta

Bits = npt.NDArray[Any]  # uint8, uint16 or uint32: as wide as the elements
DEFERRED: Final = 15
BINS: Final = (1 << 15) + 1  # of the histogram of top-k: a key each, and what is due
NO_BAD_BLOCK: Final = -1
POISON_WORD: Final = int.from_bytes(bytes([POISON]) * 4, "little")


@dataclass
class Packed:
    """What a pack left.

    Args:
        count: elements.
        block_elements: of a delta block.
        entries: (blocks,) uint64.
        offsets: (blocks,) uint64, start of each payload in the arena, in words.
        arena: uint32 words.
        words: that all blocks asked for.
        shadow: after packing.
        digest: of the shadow after packing.
    """

    count: int
    block_elements: int
    entries: npt.NDArray[np.uint64]
    offsets: npt.NDArray[np.uint64]
    arena: npt.NDArray[np.uint32]
    words: int
    shadow: Bits
    digest: tuple[int, int]

    def sizes(self) -> list[int]:
        return [int(entry) >> 44 for entry in self.entries]

    def gathered(self) -> Delta:
        """Return the delta in the order of the table; a deferred block is an empty one."""
        entries = [0 if int(entry) & 15 == DEFERRED else int(entry) for entry in self.entries]
        payload: list[int] = []
        for entry, offset in zip(entries, self.offsets, strict=True):
            payload += self.arena[int(offset) : int(offset) + (entry >> 44)].tolist()
        width = 8 * self.shadow.itemsize
        return Delta(self.count, self.block_elements, entries, payload, width)

    def deferred(self) -> list[int]:
        return [at for at, entry in enumerate(self.entries) if int(entry) & 15 == DEFERRED]


@dataclass
class Applied:
    """Weights after an apply, and the first corrupt block or `NO_BAD_BLOCK`."""

    weights: Bits
    bad_block: int


@dataclass
class Unpacked:
    """What a delta changes."""

    positions: list[int]
    values: list[int]
    bad_block: int


def table_of(delta: Delta) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], Any]:
    """Return a reference delta as table, offsets and payload."""
    entries = np.array(delta.entries, np.uint64)
    ends = np.cumsum([entry >> 44 for entry in delta.entries], dtype=np.int64)
    offsets = np.concatenate([[0], ends[:-1]]).astype(np.uint64) if len(ends) else entries.copy()
    return entries, offsets, np.array(delta.payload, np.uint32)


def blocks_of(count: int, block_elements: int) -> int:
    return -(-count // block_elements)


class CudaTwin:
    """The embedded kernels on a stream of rose's; memory without a framework."""

    def __init__(self, device: Any) -> None:
        from rose._core import CudaStream, DeviceCodec

        self.memory = Memory()
        self._stream = CudaStream.create(device, highest=False)
        self._codec = DeviceCodec.create(device)

    def _ran(self) -> None:
        self._stream.wait(timeout_ms=20_000)

    def pack(
        self,
        new: Bits,
        shadow: Bits,
        *,
        block_elements: int,
        arena_words: int,
        threshold: int | None = None,
        skew_bytes: int = 0,
        first_index: int = 0,
        seed: int = 0,
    ) -> Packed:
        memory = self.memory
        blocks = blocks_of(len(new), block_elements)
        bits = memory.uploaded(new, skew_bytes=skew_bytes)
        moved = memory.uploaded(shadow, skew_bytes=skew_bytes)
        least = None if threshold is None else memory.uploaded(np.array([threshold], np.uint32))
        arena = memory.buffer(4 * arena_words)
        # Without blocks nothing is launched.
        unknown = np.full(blocks + 2, -1 if blocks else 0, np.int64)
        ends, newest = memory.uploaded(unknown[1:]), memory.uploaded(unknown[:1])
        entries, sums = memory.buffer(8 * blocks), memory.uploaded(np.zeros(2, "u8"))
        memory.synchronize()
        self._codec.digest(
            bits=moved.address,
            width=8 * new.itemsize,
            count=len(new),
            sums=sums.address,
            stream=self._stream.handle,
            first_index=first_index,
            seed=seed,
        )
        self._codec.delta_pack(
            bits=[bits.address],
            shadow=[moved.address],
            width=[8 * new.itemsize],
            count=[len(new)],
            entries=[entries.address],
            offsets=[ends.address],
            digest=[sums.address],
            bits_box=[None],
            shadow_box=[None],
            block_elements=block_elements,
            arena=arena.address,
            arena_words=arena_words,
            newest=newest.address,
            stream=self._stream.handle,
            threshold=0 if least is None else least.address,
            first_index=first_index,
            seed=seed,
        )
        self._ran()
        assert (bits.read(new.dtype) == new).all(), "the new weights are only read"
        digest = sums.read(np.uint64)
        return Packed(
            len(new),
            block_elements,
            entries.read(np.uint64),
            ends.read(np.uint64)[:-1],
            arena.read(np.uint32),
            int(ends.read(np.uint64)[-1]),
            moved.read(new.dtype),
            (int(digest[0]), int(digest[1])),
        )

    def apply(
        self, weights: Bits, delta: Delta, *, undo: bool = False, skew_bytes: int = 0
    ) -> Applied:
        memory = self.memory
        table, starts, words = table_of(delta)
        entries, offsets = memory.uploaded(table), memory.uploaded(starts)
        payload, changed = memory.uploaded(words), memory.uploaded(weights, skew_bytes=skew_bytes)
        bad_block = memory.uploaded(np.array([-1], np.int64))
        memory.synchronize()
        self._codec.delta_apply(
            entries=[entries.address],
            offsets=[offsets.address],
            payload=[payload.address],
            payload_words=[len(words)],
            weights=[changed.address],
            width=[delta.width],
            count=[len(weights)],
            digest=[0],
            weights_box=[None],
            block_elements=[delta.block_elements],
            bad_block=bad_block.address,
            stream=self._stream.handle,
            undo=undo,
        )
        self._ran()
        assert (payload.read(np.uint32) == words).all(), "the payload is only read"
        return Applied(changed.read(weights.dtype), int(bad_block.read(np.int64)[0]))

    def unpack(self, base: Bits, delta: Delta) -> Unpacked:
        memory = self.memory
        table, starts, words = table_of(delta)
        changes = (table >> np.uint64(4)) & np.uint64(0xFFFFF)
        firsts = (np.cumsum(changes) - changes).astype(np.uint64)
        total = int(changes.sum())
        entries, offsets = memory.uploaded(table), memory.uploaded(starts)
        first_outputs, payload = memory.uploaded(firsts), memory.uploaded(words)
        bits = memory.uploaded(base)
        positions, values = memory.buffer(8 * total), memory.buffer(base.itemsize * total)
        bad_block = memory.uploaded(np.array([-1], np.int64))
        memory.synchronize()
        self._codec.topk_unpack(
            entries=entries.address,
            offsets=offsets.address,
            first_outputs=first_outputs.address,
            payload=payload.address,
            payload_words=len(words),
            base=bits.address,
            width=delta.width,
            count=len(base),
            block_elements=delta.block_elements,
            positions=positions.address,
            values=values.address,
            output_count=total,
            bad_block=bad_block.address,
            stream=self._stream.handle,
        )
        self._ran()
        return Unpacked(
            positions.read(np.int64).tolist(),
            values.read(base.dtype).tolist(),
            int(bad_block.read(np.int64)[0]),
        )

    def threshold(self, new: Bits, shadow: Bits, *, budget: int) -> int:
        memory = self.memory
        bits, old = memory.uploaded(new), memory.uploaded(shadow)
        histogram = memory.uploaded(np.zeros(BINS, np.uint64))
        threshold = memory.buffer(4)
        memory.synchronize()
        self._codec.topk_histogram(
            bits=bits.address,
            shadow=old.address,
            count=len(new),
            histogram=histogram.address,
            stream=self._stream.handle,
        )
        self._codec.topk_threshold(
            histogram=histogram.address,
            budget=budget,
            threshold=threshold.address,
            stream=self._stream.handle,
        )
        self._ran()
        return int(threshold.read(np.uint32)[0])

    def digest(
        self, bits: Bits, *, first_index: int = 0, seed: int = 0, skew_bytes: int = 0
    ) -> tuple[int, int]:
        memory = self.memory
        content = memory.uploaded(bits, skew_bytes=skew_bytes)
        sums = memory.uploaded(np.zeros(2, np.uint64))
        memory.synchronize()
        self._codec.digest(
            bits=content.address,
            width=8 * bits.itemsize,
            count=len(bits),
            sums=sums.address,
            stream=self._stream.handle,
            first_index=first_index,
            seed=seed,
        )
        self._ran()
        first, second = sums.read(np.uint64).tolist()
        return first, second


class TritonTwin:
    """Triton's kernels on torch tensors. Guards are elements before and behind, in one tensor."""

    GUARD: Final = 64

    def __init__(self) -> None:
        from rose.kernels.triton_codec import TritonCodec

        self._codec = TritonCodec()

    def _uploaded(self, array: Bits, skew_bytes: int) -> tuple[Any, Any]:
        """Return a tensor of the content, and the guarded one it is a part of."""
        import torch

        before = self.GUARD + skew_bytes // array.itemsize
        whole = np.full(before + len(array) + self.GUARD, self._poison(array.dtype), array.dtype)
        whole[before : before + len(array)] = array
        guarded = torch.from_numpy(whole.view(f"i{array.itemsize}")).cuda()
        return guarded[before : before + len(array)], guarded

    @staticmethod
    def _poison(dtype: Any) -> int:
        return POISON_WORD & ((1 << 8 * int(dtype.itemsize)) - 1)

    def _content(self, part: Any, guarded: Any) -> Bits:
        signed = guarded.cpu().numpy()
        whole = signed.view(f"u{signed.itemsize}")
        before = part.storage_offset()
        end = before + part.numel()
        around = np.concatenate([whole[:before], whole[end:]])
        assert (around == self._poison(whole.dtype)).all(), (
            "something was written around the tensor"
        )
        content: Bits = whole[before:end].copy()
        return content

    def pack(
        self,
        new: Bits,
        shadow: Bits,
        *,
        block_elements: int,
        arena_words: int,
        threshold: int | None = None,
        skew_bytes: int = 0,
    ) -> Packed:
        bits, _ = self._uploaded(new, skew_bytes)
        moved, guarded = self._uploaded(shadow, skew_bytes)
        packed = self._codec.delta_pack(
            bits, moved, block_elements=block_elements, threshold=threshold
        )
        assert packed.arena.numel() <= arena_words
        first, second = packed.digest.cpu().numpy().view(np.uint64).tolist()
        return Packed(
            len(new),
            block_elements,
            packed.entries.cpu().numpy().view(np.uint64),
            packed.offsets.cpu().numpy().view(np.uint64),
            packed.arena.cpu().numpy().view(np.uint32),
            int(packed.words.item()),
            self._content(moved, guarded),
            (first, second),
        )

    @staticmethod
    def _table(delta: Delta) -> tuple[Any, Any, Any]:
        import torch

        entries, offsets, words = table_of(delta)
        return (
            torch.from_numpy(entries.view(np.int64)).cuda(),
            torch.from_numpy(offsets.view(np.int64)).cuda(),
            torch.from_numpy(words.view(np.int32)).cuda(),
        )

    def apply(
        self, weights: Bits, delta: Delta, *, undo: bool = False, skew_bytes: int = 0
    ) -> Applied:
        changed, guarded = self._uploaded(weights, skew_bytes)
        self._codec.delta_apply(
            changed, *self._table(delta), block_elements=delta.block_elements, undo=undo
        )
        return Applied(self._content(changed, guarded), NO_BAD_BLOCK)

    def unpack(self, base: Bits, delta: Delta) -> Unpacked:
        bits, _ = self._uploaded(base, 0)
        positions, values = self._codec.topk_unpack(
            bits, *self._table(delta), block_elements=delta.block_elements
        )
        found = values.cpu().numpy().view(base.dtype)
        return Unpacked(positions.tolist(), found.tolist(), NO_BAD_BLOCK)

    def threshold(self, new: Bits, shadow: Bits, *, budget: int) -> int:
        bits, _ = self._uploaded(new, 0)
        old, _ = self._uploaded(shadow, 0)
        return int(self._codec.topk_threshold(bits, old, budget=budget))

    def digest(
        self, bits: Bits, *, first_index: int = 0, seed: int = 0, skew_bytes: int = 0
    ) -> tuple[int, int]:
        content, _ = self._uploaded(bits, skew_bytes)
        sums = self._codec.digest(content, first_index=first_index, seed=seed)
        first, second = sums.cpu().numpy().view(np.uint64).tolist()
        return first, second
