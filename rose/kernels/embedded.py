"""The delta codec with the CUDA kernels embedded in the core, on torch tensors.

Kernels run on torch's current stream, and calls do not wait for the device unless stated. Callers
check tensors as `rose.transfer.codec.operations` does: elements are int8, int16 or int32, and are
contiguous or a box of `rose.kernels.box`; tables are flat, with the types that each method names.
"""

import itertools
from collections.abc import Sequence
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
_ELEMENTS_OF_WORD: Final = 8  # elements of the tensors per word of the arena
_ARENA_WORDS_MIN: Final = 1 << 16  # any delta of two blocks of 16 bits
_NUMBER_BYTES: Final = 8  # size of a number in a table or a digest


class EmbeddedCodec:
    """The loaded kernels of one GPU. Any thread may call a method."""

    # `delta_apply` finds and skips corrupt blocks itself.
    checks_deltas: Final = True

    def __init__(self, ordinal: int) -> None:
        """Load the kernels on GPU `ordinal`.

        Raises:
            Unavailable: no driver, or a build without device code.
        """
        self._codec = DeviceCodec.create(CudaDevice.open(ordinal))

    def delta_pack(
        self,
        new: Any,
        shadow: Any,
        *,
        block_elements: int = 65_536,
        threshold: Any = None,
        ages: Any = None,
        age_limit: int = AGE_MAX,
        arena_words: int | None = None,
        base_digest: Any = None,
    ) -> PackedBlocks:
        """Pack the changes from `shadow` to `new`, and apply the sent changes to `shadow`.

        Args:
            new: the fresh elements.
            shadow: the old elements, of the same type and number, changed in place.
            block_elements: 65,536 or 16,384.
            threshold: () int32 on the device: only changes with at least this key are sent, see
                `topk_threshold`. None sends all.
            ages: one byte per element, contiguous, updated in place: the number of consecutive
                packs that did not send the element's change. A deferred block keeps its ages. None
                to ignore ages.
            age_limit: age at which a change is sent whatever its key.
            arena_words: room for the payload, in words. None: with ages enough for any delta, else
                a word per 8 elements, and then a dense delta has deferred blocks.
            base_digest: (2,) int64, the digest of `shadow`; None to compute it.

        Raises:
            InvalidArgument: a tensor has more than four separate dimensions, or the ages are not
                contiguous.
        """
        base = self.digest(shadow) if base_digest is None else base_digest
        if arena_words is None and ages is not None:
            # Packing deferred blocks again would age the other elements twice.
            arena_words = _words_of_any_delta([new])
        packed, newest = _room_for([new], base, block_elements, arena_words)
        self._pack(
            [new],
            [shadow],
            packed,
            newest,
            block_elements=block_elements,
            threshold=_address(threshold),
            ages=_ages_at(ages),
            age_limit=age_limit,
        )
        return packed

    def delta_pack_all(
        self,
        new: Sequence[Any],
        shadow: Sequence[Any],
        *,
        block_elements: int,
        base_digests: Any,
        arena_words: int | None = None,
    ) -> PackedBlocks:
        """Pack several tensors of one GPU into one arena, without a copy or a wait in between.

        One launch packs up to 63 tensors that are contiguous, aligned to 16 bytes and have 16-bit
        elements. Each other tensor has a launch of its own, in the order of the tensors.

        Args:
            new: the fresh elements.
            shadow: the old elements, changed in place.
            block_elements: 65,536 or 16,384.
            base_digests: (tensors, 2) int64, the digests of the shadows.
            arena_words: room for the payload, in words; None for a word per 8 elements.

        Returns:
            The blocks of all tensors, in their order.
        """
        packed, newest = _room_for(new, base_digests, block_elements, arena_words)
        self._pack(new, shadow, packed, newest, block_elements=block_elements)
        return packed

    def _pack(
        self,
        new: Sequence[Any],
        shadow: Sequence[Any],
        packed: PackedBlocks,
        newest: Any,
        *,
        block_elements: int,
        **more: int,
    ) -> None:
        blocks = [ceil_div(one.numel(), block_elements) for one in new]
        firsts = [_NUMBER_BYTES * first for first in itertools.accumulate(blocks, initial=0)]
        entries, offsets = packed.row.data_ptr(), packed.ends.data_ptr()
        digest = packed.digest.data_ptr()
        self._codec.delta_pack(
            bits=[one.data_ptr() for one in new],
            shadow=[one.data_ptr() for one in shadow],
            width=[_width_of(one) for one in new],
            count=[one.numel() for one in new],
            entries=[entries + first for first in firsts[:-1]],
            offsets=[offsets + first for first in firsts[:-1]],
            digest=[digest + 2 * _NUMBER_BYTES * at for at in range(len(new))],
            bits_box=[box_of("new", one) for one in new],
            shadow_box=[box_of("shadow", one) for one in shadow],
            block_elements=block_elements,
            arena=packed.arena.data_ptr(),
            arena_words=packed.arena.numel(),
            newest=newest.data_ptr(),
            stream=_stream_of(new[0]),
            **more,
        )

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
            entries: (blocks,) int64, the delta's table: one u64 for each block.
            offsets: (blocks,) int64, start of each block's payload, in words; in any order.
            payload: (words,) int32 with the bits of u32 words.
            block_elements: 65,536 or 16,384, as packed.
            undo: whether to undo the changes.

        Returns:
            () int64, the number of the lowest bad block, or -1 if all blocks are sound.
        """
        return self.delta_apply_all(
            [weights], [(entries, offsets, payload)], [block_elements], undo=undo
        )[0]

    def delta_apply_all(
        self,
        weights: Sequence[Any],
        tables: Sequence[Sequence[Any]],
        block_elements: Sequence[int],
        *,
        undo: bool = False,
        has_digest: bool = False,
    ) -> tuple[Any, Any]:
        """Apply or undo the sound blocks of several deltas; up to 23 tensors share a launch.

        Args:
            weights: tensors of one GPU, changed in place.
            tables: entries, offsets and payload of each delta, as for `delta_apply`.
            block_elements: 65,536 or 16,384 for each delta.
            undo: whether to undo the changes.
            has_digest: whether to compute the change of each tensor's digest.

        Returns:
            The lowest number that a bad block has within its delta, () int64, or -1 if all blocks
            are sound; and the amounts by which the call changes the digests, (tensors, 2) int64,
            or None without `has_digest`.
        """
        for one, blocks, (entries, offsets, _) in zip(weights, block_elements, tables, strict=True):
            _check_table(one, blocks, entries, offsets)
        device = weights[0].device
        bad_block = torch.full((), -1, dtype=torch.int64, device=device)
        sums = None
        if has_digest:
            sums = torch.zeros(len(weights), 2, dtype=torch.int64, device=device)
        self._codec.delta_apply(
            entries=[entries.data_ptr() for entries, _, _ in tables],
            offsets=[offsets.data_ptr() for _, offsets, _ in tables],
            payload=[payload.data_ptr() for _, _, payload in tables],
            payload_words=[payload.numel() for _, _, payload in tables],
            weights=[one.data_ptr() for one in weights],
            width=[_width_of(one) for one in weights],
            count=[one.numel() for one in weights],
            digest=[0] * len(weights) if sums is None else [one.data_ptr() for one in sums],
            weights_box=[box_of("weights", one) for one in weights],
            block_elements=block_elements,
            bad_block=bad_block.data_ptr(),
            stream=_stream_of(weights[0]),
            undo=undo,
        )
        return bad_block, sums

    def topk_threshold(
        self, new: Any, shadow: Any, *, budget: int, ages: Any = None, age_limit: int = AGE_MAX
    ) -> Any:
        """Find the smallest threshold >= 1 that at most `budget` changed bf16 elements reach.

        Due changes count towards `budget`, and are sent in any case. The ages are not updated.

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
        self,
        base: Any,
        entries: Any,
        offsets: Any,
        payload: Any,
        *,
        firsts: Any,
        changed: int,
        bad_block: Any,
        block_elements: int,
    ) -> tuple[Any, Any]:
        """List the changes of each sound block of a delta.

        Args:
            base: elements, only read.
            entries: see `delta_apply`.
            offsets: see `delta_apply`.
            payload: see `delta_apply`.
            firsts: (blocks,) int64, number of changes before each block.
            changed: number of changes of all blocks.
            bad_block: () int64 with the value -1; set to the lowest bad block, if there is one.
            block_elements: 65,536 or 16,384, as packed.

        Returns:
            (changed,) int64 positions, ascending, and the new bits of these elements. Positions and
            bits of bad blocks are arbitrary.
        """
        _check_table(base, block_elements, entries, offsets)
        positions = torch.empty(changed, dtype=torch.int64, device=base.device)
        values = torch.empty(changed, dtype=base.dtype, device=base.device)
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
            output_count=changed,
            bad_block=bad_block.data_ptr(),
            stream=_stream_of(base),
        )
        return positions, values

    def digest(self, bits: Any, *, first_index: int = 0, seed: int = 0) -> Any:
        """Return the two sums of a digest, (2,) int64 with the bits of two u64."""
        sums = torch.zeros(2, dtype=torch.int64, device=bits.device)
        self._digest(bits, sums.data_ptr(), first_index=first_index, seed=seed & _MASK64)
        return sums

    def digest_all(self, tensors: Sequence[Any]) -> Any:
        """Return the digests of tensors of one GPU, (tensors, 2) int64."""
        sums = torch.zeros(len(tensors), 2, dtype=torch.int64, device=tensors[0].device)
        for at, one in enumerate(tensors):
            self._digest(one, sums.data_ptr() + 2 * _NUMBER_BYTES * at)
        return sums

    def _digest(self, bits: Any, sums: int, **more: int) -> None:
        self._codec.digest(
            bits=bits.data_ptr(),
            width=_width_of(bits),
            count=bits.numel(),
            bits_box=box_of("bits", bits),
            sums=sums,
            stream=_stream_of(bits),
            **more,
        )


def _width_of(bits: Any) -> int:
    return 8 * int(bits.element_size())


def _room_for(
    tensors: Sequence[Any], base_digests: Any, block_elements: int, arena_words: int | None
) -> tuple[PackedBlocks, Any]:
    """Allocate packed blocks.

    Returns:
        The packed blocks, and the number of the last block that a CTA has taken, () int64.
    """
    if arena_words is None:
        # A delta with 10 % changes fits. Room for any delta would take as much memory as the
        # weights, from a device that also serves.
        elements = sum(one.numel() for one in tensors)
        arena_words = max(ceil_div(elements, _ELEMENTS_OF_WORD), _ARENA_WORDS_MIN)
        arena_words = min(arena_words, _words_of_any_delta(tensors))
    blocks = sum(ceil_div(one.numel(), block_elements) for one in tensors)
    device = tensors[0].device
    # The kernels expect -1 in every number. Without blocks no kernel runs, so the only number that
    # is read, the end of the payload, must be 0 from the start.
    numbers = torch.full((blocks + 2,), -1 if blocks else 0, dtype=torch.int64, device=device)
    packed = PackedBlocks(
        row=torch.empty(2 * blocks + arena_words, dtype=torch.int32, device=device),
        ends=numbers[1:],
        digest=base_digests.flatten().clone(),
    )
    return packed, numbers[0]


def _words_of_any_delta(tensors: Sequence[Any]) -> int:
    # A RAW block has as many words as its elements, and no block is larger.
    return sum(ceil_div(one.numel() * _width_of(one), 32) for one in tensors)


def _check_table(like: Any, block_elements: int, entries: Any, offsets: Any) -> None:
    """Check that the table has the length that the kernels read."""
    blocks = ceil_div(like.numel(), block_elements)
    check(
        entries.numel() == offsets.numel() == blocks,
        f"expected {blocks} blocks, got {entries.numel()} entries and {offsets.numel()} offsets",
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
