"""The delta codec by the CUDA kernels that are embedded in the core, on tensors of torch.

The same functions as the Triton twins of this room, with the same results. They launch on torch's
current stream, and nothing waits for the device.
"""

from typing import Any, Final

import torch

from rose._core import CudaDevice, DeviceCodec
from rose.errors import InvalidArgument
from rose.kernels import operands
from rose.kernels.blocks import PackedBlocks, UnpackedChanges
from rose.kernels.box import box_of
from rose.kernels.classes import ClassRule

# Of the histogram of top-k: a key each, and what is due.
_BINS: Final = (1 << 15) + 1
_STRAT: Final = 4  # the kind of an entry


class EmbeddedCodec:
    """The kernels of one GPU, loaded; any thread."""

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
        age_limit: int = operands.AGE_MAX,
        first_index: int = 0,
        seed: int = 0,
        arena_words: int | None = None,
    ) -> PackedBlocks:
        """As `rose.kernels.delta_pack.delta_pack`; without a shadow, the delta from zeros."""
        if shadow is not None:
            operands.check_twins(new, shadow)
        operands.check_block_elements(block_elements)
        operands.check_ages(ages, age_limit, new)
        bits = operands.bits_of("new", new)
        old = None if shadow is None else operands.bits_of("shadow", shadow)
        width = operands.width_of(bits)
        operands.first_word(first_index, width)
        if threshold is not None or ages is not None:
            operands.check_keys(new)
        if threshold is not None:
            operands.check_words("threshold", threshold, torch.int32, new)
        packed = operands.empty_blocks(bits, block_elements, arena_words)
        self._codec.delta_pack(
            bits=bits.data_ptr(),
            shadow=_address(old),
            width=width,
            count=bits.numel(),
            block_elements=block_elements,
            bits_box=box_of("new", bits),
            shadow_box=None if old is None else box_of("shadow", old),
            arena=packed.arena.data_ptr(),
            arena_words=packed.arena.numel(),
            cursor=packed.words.data_ptr(),
            entries=packed.entries.data_ptr(),
            offsets=packed.offsets.data_ptr(),
            threshold=_address(threshold),
            ages=_address(ages),
            age_limit=age_limit,
            digest=packed.digest.data_ptr(),
            first_index=first_index,
            seed=seed & operands.MASK64,
            stream=_stream_of(bits),
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
        blocks: range | None = None,
    ) -> Any:
        """As `rose.kernels.delta_apply.delta_apply`; the bad block is an int64 scalar."""
        bits = operands.bits_of("weights", weights)
        operands.check_table(entries, offsets, payload, bits, block_elements)
        some = operands.some_blocks(blocks, entries.numel())
        first = some.start * block_elements
        bad_block = torch.full((), -1, dtype=torch.int64, device=bits.device)
        self._codec.delta_apply(
            entries=entries[some.start :].data_ptr(),
            offsets=offsets[some.start :].data_ptr(),
            payload=payload.data_ptr(),
            payload_words=payload.numel(),
            weights=bits.data_ptr(),
            width=operands.width_of(bits),
            count=min(bits.numel(), some.stop * block_elements) - first,
            block_elements=block_elements,
            bad_block=bad_block.data_ptr(),
            weights_box=box_of("weights", bits),
            first=first,
            undo=undo,
            stream=_stream_of(bits),
        )
        return bad_block + some.start * (bad_block >= 0) if some.start else bad_block

    def topk_threshold(
        self,
        new: Any,
        shadow: Any,
        *,
        budget: int,
        ages: Any = None,
        age_limit: int = operands.AGE_MAX,
    ) -> Any:
        """As `rose.kernels.topk_pack.topk_threshold`."""
        operands.check_twins(new, shadow)
        operands.check_keys(new)
        operands.check_ages(ages, age_limit, new)
        if budget < 0:
            raise InvalidArgument(f"budget {budget} must not be negative")
        bits, old = operands.bits_of("new", new), operands.bits_of("shadow", shadow)
        histogram = torch.zeros(_BINS, dtype=torch.int64, device=bits.device)
        threshold = torch.empty((), dtype=torch.int32, device=bits.device)
        stream = _stream_of(bits)
        self._codec.topk_histogram(
            bits=bits.data_ptr(),
            shadow=old.data_ptr(),
            count=bits.numel(),
            bits_box=box_of("new", bits),
            shadow_box=box_of("shadow", old),
            ages=_address(ages),
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
        self,
        base: Any,
        entries: Any,
        offsets: Any,
        payload: Any,
        *,
        block_elements: int,
        capacity: int,
    ) -> UnpackedChanges:
        """As `rose.kernels.topk_unpack.topk_unpack`."""
        bits = operands.bits_of("base", base)
        operands.check_table(entries, offsets, payload, bits, block_elements)
        if capacity < 0:
            raise InvalidArgument(f"capacity {capacity} must not be negative")
        changed = (entries >> 4) & 0xFFFFF
        firsts = changed.cumsum(0) - changed
        positions = torch.full((capacity,), -1, dtype=torch.int64, device=bits.device)
        values = torch.zeros(capacity, dtype=bits.dtype, device=bits.device)
        bad_block = torch.full((), -1, dtype=torch.int64, device=bits.device)
        self._codec.topk_unpack(
            entries=entries.data_ptr(),
            offsets=offsets.data_ptr(),
            first_outputs=firsts.data_ptr(),
            payload=payload.data_ptr(),
            payload_words=payload.numel(),
            base=bits.data_ptr(),
            width=operands.width_of(bits),
            count=bits.numel(),
            block_elements=block_elements,
            base_box=box_of("base", bits),
            positions=positions.data_ptr(),
            values=values.data_ptr(),
            output_count=capacity,
            bad_block=bad_block.data_ptr(),
            stream=_stream_of(bits),
        )
        return UnpackedChanges(positions, values, changed.sum(), bad_block)

    def digest(self, bits: Any, *, first_index: int = 0, seed: int = 0) -> Any:
        """As `rose.kernels.digest.digest`."""
        whole = operands.bits_of("bits", bits)
        width = operands.width_of(whole)
        operands.first_word(first_index, width)
        sums = torch.zeros(2, dtype=torch.int64, device=whole.device)
        self._codec.digest(
            bits=whole.data_ptr(),
            width=width,
            count=whole.numel(),
            bits_box=box_of("bits", whole),
            sums=sums.data_ptr(),
            first_index=first_index,
            seed=seed & operands.MASK64,
            stream=_stream_of(whole),
        )
        return sums

    # ---- what goes by way of all differences: a tensor as large as the weights ----

    def _differences(
        self, like: Any, *deltas: tuple[Any, Any, Any], block_elements: int
    ) -> tuple[Any, Any]:
        """Return what deltas make of zeros, one after the other, and the lowest bad block or -1."""
        differences = torch.zeros(like.numel(), dtype=like.dtype, device=like.device)
        bad_block = torch.full((), -1, dtype=torch.int64, device=like.device)
        for delta in deltas:
            bad = self.delta_apply(differences, *delta, block_elements=block_elements)
            bad_block = torch.where(bad_block < 0, bad, bad_block)
        return differences, bad_block

    def delta_merge(
        self,
        first: tuple[Any, Any, Any],
        second: tuple[Any, Any, Any],
        *,
        like: Any,
        block_elements: int,
    ) -> tuple[PackedBlocks, Any]:
        """Return the delta that does what `first` and then `second` do.

        Differences are added, so it is the delta from zeros of what both make of zeros.

        Args:
            first: its entries, offsets and payload, as for `delta_apply`; of the same blocks.
            second: the same of the other.
            like: a tensor of the shape and dtype that the deltas are for; it is not read.
            block_elements: 65,536 or 16,384.

        Returns:
            The blocks, whose digest is that of the differences, and the lowest bad block of the
            first or else of the second, or -1, as an int64 scalar. With a bad block they are no
            merger.
        """
        bits = operands.bits_of("like", like)
        differences, bad_block = self._differences(
            bits, first, second, block_elements=block_elements
        )
        return self.delta_pack(differences, None, block_elements=block_elements), bad_block

    def strat_pack(
        self,
        base: Any,
        entries: Any,
        offsets: Any,
        payload: Any,
        *,
        block_elements: int,
        rule: ClassRule,
    ) -> tuple[PackedBlocks, Any]:
        """Recode the blocks of a delta that get smaller so for a link; nothing waits.

        Args:
            base: what the delta was made from; a box, see `rose.kernels.box`.
            entries: the delta's, as for `delta_apply`, like offsets and payload.
            offsets: as above.
            payload: as above.
            block_elements: 65,536 or 16,384.
            rule: the link's.

        Returns:
            The blocks, with digests of 0, and the lowest bad block of the delta, or -1: then what
            was packed says nothing.
        """
        bits = operands.bits_of("base", base)
        differences, bad_block = self._differences(
            bits, (entries, offsets, payload), block_elements=block_elements
        )
        # Of a bad delta no block is read again: its table may say anything.
        sound = torch.where(bad_block < 0, entries, 0)
        link = operands.empty_blocks(bits, block_elements, payload.numel())
        self._codec.strat_pack(
            entries=sound.data_ptr(),
            offsets=offsets.data_ptr(),
            payload=payload.data_ptr(),
            base=bits.data_ptr(),
            differences=differences.data_ptr(),
            width=operands.width_of(bits),
            count=bits.numel(),
            block_elements=block_elements,
            rule=_numbers(rule),
            arena=link.arena.data_ptr(),
            arena_words=link.arena.numel(),
            cursor=link.words.data_ptr(),
            link_entries=link.entries.data_ptr(),
            link_offsets=link.offsets.data_ptr(),
            base_box=box_of("base", bits),
            stream=_stream_of(bits),
        )
        return link, bad_block

    def strat_unpack(
        self,
        base: Any,
        entries: Any,
        offsets: Any,
        payload: Any,
        *,
        block_elements: int,
        rule: ClassRule,
    ) -> tuple[PackedBlocks, Any]:
        """Make of what crossed a link the delta that `strat_pack` was given.

        Args:
            base: what the delta was made from; a box, see `rose.kernels.box`.
            entries: the link's, like offsets and payload.
            offsets: as above.
            payload: as above.
            block_elements: 65,536 or 16,384.
            rule: the link's.

        Returns:
            The blocks, with digests of 0 and a payload that may hold words of no block, and the
            lowest STRAT block that is bad, or -1. Other blocks are as they were, unchecked.
        """
        bits = operands.bits_of("base", base)
        operands.check_table(entries, offsets, payload, bits, block_elements)
        differences = torch.zeros(bits.numel(), dtype=bits.dtype, device=bits.device)
        bad_block = torch.full((), -1, dtype=torch.int64, device=bits.device)
        self._codec.strat_unpack(
            entries=entries.data_ptr(),
            offsets=offsets.data_ptr(),
            payload=payload.data_ptr(),
            payload_words=payload.numel(),
            base=bits.data_ptr(),
            differences=differences.data_ptr(),
            width=operands.width_of(bits),
            count=bits.numel(),
            block_elements=block_elements,
            rule=_numbers(rule),
            bad_block=bad_block.data_ptr(),
            base_box=box_of("base", bits),
            stream=_stream_of(bits),
        )
        again = self.delta_pack(differences, None, block_elements=block_elements)
        is_strat = (entries & 15) == _STRAT
        blocks = PackedBlocks(
            entries=torch.where(is_strat, again.entries, entries),
            offsets=torch.where(is_strat, again.offsets + payload.numel(), offsets),
            arena=torch.cat([payload, again.arena]),
            words=again.words + payload.numel(),
            digest=torch.zeros_like(again.digest),
        )
        return blocks, bad_block


def _numbers(rule: ClassRule) -> tuple[int, int, int, int, int]:
    """Return a rule as the kernels take it."""
    bits = sum(one << (8 * c) for c, one in enumerate(rule.magnitude_bits))
    return rule.shift, rule.exponent_bits, rule.origin, rule.all_mask, bits


def _address(tensor: Any) -> int:
    """Return where a tensor lies; 0 for None."""
    return 0 if tensor is None else int(tensor.data_ptr())


def _stream_of(tensor: Any) -> int:
    return int(torch.cuda.current_stream(tensor.device).cuda_stream)
