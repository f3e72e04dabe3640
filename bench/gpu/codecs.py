"""The codec's twins for a GPU behind one set of calls, on torch tensors of 16-bit elements."""

from dataclasses import dataclass
from typing import Any, Final

BLOCK_ELEMENTS: Final = 65_536
KEYS: Final = 1 << 15


@dataclass(slots=True)
class Packed:
    """A delta on the device, its blocks anywhere in the arena.

    Args:
        entries: (blocks,) int64, the table.
        offsets: (blocks,) int64, where each payload lies, in words.
        arena: int32 words.
        words: int64, words that all blocks asked for.
        digest: (2,) int64, of the shadow after packing.
        block_elements: of a delta block.
    """

    entries: Any
    offsets: Any
    arena: Any
    words: Any
    digest: Any
    block_elements: int


def blocks_of(count: int, block_elements: int) -> int:
    return -(-count // block_elements)


class CudaTwin:
    """The kernels of the embedded fat binary, launched on torch's current stream."""

    name = "CUDA"

    def __init__(self, device: Any) -> None:
        from rose._core import DeviceCodec

        self._codec = DeviceCodec.create(device)

    @staticmethod
    def _stream() -> int:
        import torch

        return int(torch.cuda.current_stream().cuda_stream)

    def pack(
        self,
        new: Any,
        shadow: Any,
        *,
        arena_words: int,
        block_elements: int = BLOCK_ELEMENTS,
        threshold: Any = None,
        into: Packed | None = None,
    ) -> Packed:
        """Pack and move the shadow; `into` is the room of an earlier delta, to be used again."""
        out = into or self.room(new, arena_words=arena_words, block_elements=block_elements)
        out.words.zero_()
        out.digest.zero_()
        self._codec.delta_pack(
            bits=new.data_ptr(),
            shadow=shadow.data_ptr(),
            count=new.numel(),
            threshold=0 if threshold is None else threshold.data_ptr(),
            arena=out.arena.data_ptr(),
            arena_words=out.arena.numel(),
            cursor=out.words.data_ptr(),
            entries=out.entries.data_ptr(),
            offsets=out.offsets.data_ptr(),
            digest=out.digest.data_ptr(),
            first_index=0,
            seed=0,
            block_elements=block_elements,
            stream=self._stream(),
        )
        return out

    @staticmethod
    def room(new: Any, *, arena_words: int, block_elements: int = BLOCK_ELEMENTS) -> Packed:
        import torch

        blocks = blocks_of(new.numel(), block_elements)

        def words(count: int, dtype: Any) -> Any:
            return torch.empty(count, dtype=dtype, device=new.device)

        return Packed(
            words(blocks, torch.int64),
            words(blocks, torch.int64),
            words(arena_words, torch.int32),
            words(1, torch.int64),
            words(2, torch.int64),
            block_elements,
        )

    def apply(self, packed: Packed, weights: Any, *, undo: bool = False) -> Any:
        """Apply or undo; returns the tensor that names the first corrupt block, or holds -1."""
        import torch

        bad_block = torch.full((1,), -1, dtype=torch.int64, device=weights.device)
        self._codec.delta_apply(
            entries=packed.entries.data_ptr(),
            offsets=packed.offsets.data_ptr(),
            payload=packed.arena.data_ptr(),
            payload_words=packed.arena.numel(),
            weights=weights.data_ptr(),
            count=weights.numel(),
            bad_block=bad_block.data_ptr(),
            undo=undo,
            block_elements=packed.block_elements,
            stream=self._stream(),
        )
        return bad_block

    def threshold(self, new: Any, shadow: Any, *, budget: int) -> Any:
        import torch

        histogram = torch.zeros(KEYS, dtype=torch.int64, device=new.device)
        threshold = torch.empty(1, dtype=torch.int32, device=new.device)
        self._codec.topk_histogram(
            bits=new.data_ptr(),
            shadow=shadow.data_ptr(),
            count=new.numel(),
            histogram=histogram.data_ptr(),
            stream=self._stream(),
        )
        self._codec.topk_threshold(
            histogram=histogram.data_ptr(),
            budget=budget,
            threshold=threshold.data_ptr(),
            stream=self._stream(),
        )
        return threshold

    def digest(self, bits: Any) -> Any:
        import torch

        sums = torch.zeros(2, dtype=torch.int64, device=bits.device)
        self._codec.digest(
            bits=bits.data_ptr(),
            count=bits.numel(),
            first_index=0,
            seed=0,
            sums=sums.data_ptr(),
            stream=self._stream(),
        )
        return sums


class TritonTwin:
    """The same in Triton; its kernels are compiled at their first call."""

    name = "Triton"

    def pack(
        self,
        new: Any,
        shadow: Any,
        *,
        arena_words: int,
        block_elements: int = BLOCK_ELEMENTS,
        threshold: Any = None,
        into: Packed | None = None,
    ) -> Packed:
        from rose.kernels.delta_pack import delta_pack

        del into  # torch's allocator hands the same room out again
        packed = delta_pack(
            new,
            shadow,
            block_elements=block_elements,
            threshold=threshold,
            arena_words=arena_words,
        )
        return Packed(
            packed.entries,
            packed.offsets,
            packed.arena,
            packed.words,
            packed.digest,
            block_elements,
        )

    def apply(self, packed: Packed, weights: Any, *, undo: bool = False) -> Any:
        from rose.kernels.delta_apply import delta_apply

        return delta_apply(
            weights,
            packed.entries,
            packed.offsets,
            packed.arena,
            block_elements=packed.block_elements,
            undo=undo,
        )

    def threshold(self, new: Any, shadow: Any, *, budget: int) -> Any:
        from rose.kernels.topk_pack import topk_threshold

        return topk_threshold(new, shadow, budget=budget)

    def digest(self, bits: Any) -> Any:
        from rose.kernels.digest import digest

        return digest(bits)
