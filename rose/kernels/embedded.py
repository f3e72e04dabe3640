"""The delta codec with the CUDA kernels embedded in the core, on torch tensors.

Kernels run on torch's current stream, and calls do not wait for the device unless stated. Tensors
are as checked by `rose.transfer.codec.operations`: elements of int8, int16 or int32, contiguous or
a box of `rose.kernels.box`; tables are flat, with the types below.
"""

from typing import Any, Final

import torch

from rose._core import CudaDevice, DeviceCodec
from rose.errors import InvalidArgument, check
from rose.kernels.blocks import AGE_MAX, PackedBlocks
from rose.kernels.box import box_of
from rose.units import ceil_div

# Bins of the top-k histogram: one per key, and one for due changes.
_BINS: Final = (1 << 15) + 1
_MASK64: Final = (1 << 64) - 1


class EmbeddedCodec:
    """The loaded kernels of one GPU; any thread may call."""

    def __init__(self, ordinal: int) -> None:
        """Load the kernels on GPU `ordinal`.

        Raises:
            Unavailable: no driver, or a build without device code.
        """
        self._codec = DeviceCodec.create(CudaDevice.open(ordinal))

    def delta_pack(
        self,
        new: Any,
        shadow: Any | None,
        *,
        block_elements: int = 65_536,
        threshold: Any = None,
        ages: Any = None,
        age_limit: int = AGE_MAX,
        arena_words: int | None = None,
        base_digest: Any = None,
    ) -> PackedBlocks:
        """Pack the changes from `shadow` to `new`, and apply the sent ones to `shadow`.

        Args:
            new: the fresh elements.
            shadow: the old elements, of the same type and number, changed in place; None for zeros.
            block_elements: 65,536 or 16,384.
            threshold: () int32 on the device: only changes with at least this key are sent, see
                `topk_threshold`. None sends all.
            ages: one byte per element, contiguous, updated in place: consecutive packs that left it
                unsent, including those that deferred its block. None to ignore ages.
            age_limit: age at which a change is sent whatever its key.
            arena_words: words for the payload; None for enough in any case.
            base_digest: (2,) int64, the digest of `shadow`, if known. Then whole blocks of
                contiguous 16-bit elements are packed several times as fast.

        Raises:
            InvalidArgument: a tensor has more than four separate dimensions, or the ages are not
                contiguous.
        """
        packed = _room_for(new, block_elements, arena_words)
        self._codec.delta_pack(
            bits=new.data_ptr(),
            shadow=_address(shadow),
            width=_width_of(new),
            count=new.numel(),
            block_elements=block_elements,
            bits_box=box_of("new", new),
            shadow_box=None if shadow is None else box_of("shadow", shadow),
            arena=packed.arena.data_ptr(),
            arena_words=packed.arena.numel(),
            cursor=packed.words.data_ptr(),
            entries=packed.entries.data_ptr(),
            offsets=packed.offsets.data_ptr(),
            threshold=_address(threshold),
            ages=_ages_at(ages),
            age_limit=age_limit,
            digest=packed.digest.data_ptr(),
            base_digest=_address(base_digest),
            stream=_stream_of(new),
        )
        return packed

    def delta_apply(
        self,
        weights: Any,
        entries: Any,
        offsets: Any,
        payload: Any,
        *,
        block_elements: int,
        undo: bool = False,
    ) -> Any:
        """Apply or undo each sound block of a delta.

        The soundness of a block depends on the delta only, so `undo` exactly reverses an apply,
        even of a delta with bad blocks.

        Args:
            weights: elements, changed in place.
            entries: (blocks,) int64, the u64 of the table.
            offsets: (blocks,) int64, start of each block's payload, in words; in any order.
            payload: (words,) int32 with the bits of u32 words.
            block_elements: 65,536 or 16,384, as packed.
            undo: whether to undo the changes.

        Returns:
            () int64, the lowest bad block, or -1.
        """
        _check_table(weights, block_elements, entries, offsets)
        bad_block = torch.full((), -1, dtype=torch.int64, device=weights.device)
        self._codec.delta_apply(
            entries=entries.data_ptr(),
            offsets=offsets.data_ptr(),
            payload=payload.data_ptr(),
            payload_words=payload.numel(),
            weights=weights.data_ptr(),
            width=_width_of(weights),
            count=weights.numel(),
            block_elements=block_elements,
            bad_block=bad_block.data_ptr(),
            weights_box=box_of("weights", weights),
            undo=undo,
            stream=_stream_of(weights),
        )
        return bad_block

    def topk_threshold(
        self, new: Any, shadow: Any, *, budget: int, ages: Any = None, age_limit: int = AGE_MAX
    ) -> Any:
        """Find the smallest threshold >= 1 that at most `budget` changed bf16 elements reach.

        Due changes count, and are sent in any case; the ages are not updated.

        Returns:
            () int32 on the device; 32,768 if even the largest key has too many changes.
        """
        histogram = torch.zeros(_BINS, dtype=torch.int64, device=new.device)
        threshold = torch.empty((), dtype=torch.int32, device=new.device)
        stream = _stream_of(new)
        self._codec.topk_histogram(
            bits=new.data_ptr(),
            shadow=shadow.data_ptr(),
            count=new.numel(),
            bits_box=box_of("new", new),
            shadow_box=box_of("shadow", shadow),
            ages=_ages_at(ages),
            age_limit=age_limit,
            histogram=histogram.data_ptr(),
            stream=stream,
        )
        self._codec.topk_threshold(
            histogram=histogram.data_ptr(),
            budget=budget,
            threshold=threshold.data_ptr(),
            stream=stream,
        )
        return threshold

    def topk_unpack(
        self, base: Any, entries: Any, offsets: Any, payload: Any, *, block_elements: int
    ) -> tuple[Any, Any]:
        """List the changes of a sound delta; waits for the stream.

        Returns:
            (changed,) int64 positions, ascending, and the new bits of these elements.
        """
        _check_table(base, block_elements, entries, offsets)
        changed = (entries >> 4) & 0xFFFFF
        firsts = changed.cumsum(0) - changed
        count = int(changed.sum())
        positions = torch.full((count,), -1, dtype=torch.int64, device=base.device)
        values = torch.zeros(count, dtype=base.dtype, device=base.device)
        bad_block = torch.full((), -1, dtype=torch.int64, device=base.device)
        self._codec.topk_unpack(
            entries=entries.data_ptr(),
            offsets=offsets.data_ptr(),
            first_outputs=firsts.data_ptr(),
            payload=payload.data_ptr(),
            payload_words=payload.numel(),
            base=base.data_ptr(),
            width=_width_of(base),
            count=base.numel(),
            block_elements=block_elements,
            base_box=box_of("base", base),
            positions=positions.data_ptr(),
            values=values.data_ptr(),
            output_count=count,
            bad_block=bad_block.data_ptr(),
            stream=_stream_of(base),
        )
        refused = int(bad_block)
        check(refused == -1, f"the device refuses block {refused} of a sound delta")
        return positions, values

    def digest(self, bits: Any, *, first_index: int = 0, seed: int = 0) -> Any:
        """Return the two sums of a digest, (2,) int64 with the bits of two u64."""
        sums = torch.zeros(2, dtype=torch.int64, device=bits.device)
        self._codec.digest(
            bits=bits.data_ptr(),
            width=_width_of(bits),
            count=bits.numel(),
            bits_box=box_of("bits", bits),
            sums=sums.data_ptr(),
            first_index=first_index,
            seed=seed & _MASK64,
            stream=_stream_of(bits),
        )
        return sums


def _width_of(bits: Any) -> int:
    return 8 * int(bits.element_size())


def _room_for(bits: Any, block_elements: int, arena_words: int | None) -> PackedBlocks:
    """Allocate the delta of `bits`, by default enough in any case; words and digest are 0."""
    full, rest = divmod(bits.numel(), block_elements)
    if arena_words is None:
        width = _width_of(bits)
        arena_words = full * (block_elements * width // 32) + ceil_div(rest * width, 32)
    entries = torch.empty(full + (rest > 0), dtype=torch.int64, device=bits.device)
    sums = torch.zeros(3, dtype=torch.int64, device=bits.device)
    return PackedBlocks(
        entries=entries,
        offsets=torch.empty_like(entries),
        arena=torch.empty(arena_words, dtype=torch.int32, device=bits.device),
        words=sums[0],
        digest=sums[1:],
    )


def _check_table(like: Any, block_elements: int, entries: Any, offsets: Any) -> None:
    """Check that the table has the length that the kernels read."""
    blocks = ceil_div(like.numel(), block_elements)
    check(
        entries.numel() == offsets.numel() == blocks,
        f"{blocks} blocks have {entries.numel()} entries and {offsets.numel()} offsets",
    )


def _ages_at(ages: Any) -> int:
    if ages is not None and not ages.is_contiguous():
        raise InvalidArgument(f"ages have strides {ages.stride()}: pass a contiguous copy")
    return _address(ages)


def _address(tensor: Any) -> int:
    """Return the address of a tensor; 0 for None."""
    return 0 if tensor is None else int(tensor.data_ptr())


def _stream_of(tensor: Any) -> int:
    return int(torch.cuda.current_stream(tensor.device).cuda_stream)
