"""The delta codec with the CUDA kernels embedded in the core, on torch tensors.

Elements are int8, int16 or int32, contiguous or a box of `rose.kernels.box`. Work is queued on
torch's current stream.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from rose._core import CudaDevice, DeviceCodec, delta_check
from rose.errors import InternalError, InvalidArgument, check
from rose.kernels.box import box_of
from rose.kernels.deltas import AGE_LIMIT, DeltaLike, PackedDelta, check_all
from rose.kernels.gpu import (
    MASK64,
    base_digests_of,
    check_sizes,
    on_gpu_of,
    on_host,
    pairs_of,
    refuse_base,
    sizes_of,
    tables_of,
)
from rose.units import ceil_div

# Kind of a block that did not fit the arena, in the lowest four bits of its entry.
_DEFERRED: Final = 15
# Bins of the top-k histogram: one per key, and one for due changes.
_BINS: Final = (1 << 15) + 1
_ELEMENTS_OF_WORD: Final = 8  # elements of the tensors per word of the arena
_ARENA_WORDS_MIN: Final = 1 << 16  # any delta of two blocks of 16 bits
_NUMBER_BYTES: Final = 8  # size of a number in a table or a digest


@dataclass(frozen=True, slots=True)
class PackedBlocks:
    """Deltas on the device, one after the other.

    Args:
        row: (2 * blocks + n,) int32, the table, with one u64 for each block, and then the arena,
            which begins with the payload. Kind 15 marks a block that did not fit the arena, and
            whose shadow is unchanged; then all later blocks with changes are deferred, too.
        ends: (blocks + 1,) int64, start of each block's payload in the arena, in words, and the end
            of the last payload, which lies beyond the arena if blocks were deferred.
        digest: (2 * n,) int64, digests of the n shadows after packing.
    """

    row: Any
    ends: Any
    digest: Any

    @property
    def blocks(self) -> int:
        """Return the number of delta blocks."""
        return len(self.ends) - 1

    @property
    def entries(self) -> Any:
        """Return the table, (blocks,) int64."""
        return self.row[: 2 * self.blocks].view(self.ends.dtype)

    @property
    def offsets(self) -> Any:
        """Return where the payload of each block begins, (blocks,) int64."""
        return self.ends[:-1]

    @property
    def arena(self) -> Any:
        """Return the arena, (n,) int32 with the bits of u32 words."""
        return self.row[2 * self.blocks :]

    @property
    def words(self) -> Any:
        """Return the number of words that all blocks together need, () int64."""
        return self.ends[-1]


class EmbeddedCodec:
    """The loaded kernels of one GPU. Any thread may call a method.

    A method waits for the stream if it returns a host value, or applies a delta that is not marked
    as checked. Those that take and return tensors of the GPU wait for nothing. Packing temporarily
    takes half a byte per element, and with ages as much memory as the weights.
    """

    def __init__(self, ordinal: int) -> None:
        """Load the kernels on GPU `ordinal`.

        Raises:
            Unavailable: no driver, or a build without device code.
        """
        self._codec = DeviceCodec.create(CudaDevice.open(ordinal))

    def delta_pack(
        self,
        new: Sequence[Any],
        shadow: Sequence[Any],
        *,
        block_elements: int,
        base_digests: Sequence[tuple[int, int] | None],
        threshold: int = 0,
        ages: Any = None,
        age_limit: int = AGE_LIMIT,
        threads: int = 1,  # noqa: ARG002 - the device has its own
    ) -> list[PackedDelta]:
        """Pack tensors of one GPU together, then copy all deltas to the host at once.

        The deltas share one array in pinned memory. If a dense delta does not fit the arena, its
        later blocks are packed by another launch.
        """
        least = on_gpu_of(new[0], np.array([threshold], np.int32))[0][0] if threshold else None
        bases = base_digests_of(shadow, base_digests, self.digests)
        room = None
        if ages is not None:
            # Packing deferred blocks again would age the other elements twice.
            room = _words_of_any_delta(new)
        packed = self.pack_blocks(
            new,
            shadow,
            bases,
            block_elements=block_elements,
            threshold=least,
            ages=ages,
            age_limit=age_limit,
            arena_words=room,
        )
        entries, payload = _fetched(packed)
        missing = int(packed.words) - len(payload)
        if missing:
            # The shadows of the first blocks are up to date, so only deferred blocks have changes.
            packed = self.pack_blocks(
                new,
                shadow,
                packed.digest,
                block_elements=block_elements,
                threshold=least,
                arena_words=missing,
            )
            late, rest = _fetched(packed)
            check(len(rest) == missing, "a block was deferred although the arena fits the delta")
            entries = np.where(entries & np.uint64(0xF) == _DEFERRED, late, entries)
            payload = np.concatenate([payload, rest])
        deltas = []
        for one, base, after in zip(new, pairs_of(bases), pairs_of(packed.digest), strict=True):
            mine = entries[: ceil_div(one.numel(), block_elements)]
            size = int(sizes_of(mine).sum())
            deltas.append(PackedDelta(mine, payload[:size], base, after))
            entries, payload = entries[len(mine) :], payload[size:]
        return deltas

    def pack_blocks(
        self,
        new: Sequence[Any],
        shadow: Sequence[Any],
        base_digests: Any,
        *,
        block_elements: int,
        threshold: Any = None,
        ages: Any = None,
        age_limit: int = AGE_LIMIT,
        arena_words: int | None = None,
    ) -> PackedBlocks:
        """Pack tensors of one GPU into one arena, and apply the sent changes to the shadows.

        One launch packs up to 63 tensors that are contiguous, aligned to 16 bytes and have 16-bit
        elements, without ages. Each other tensor has a launch of its own, in the order of the
        tensors.

        Args:
            new: the fresh elements.
            shadow: the old elements, changed in place.
            base_digests: (tensors, 2) int64, the digests of the shadows.
            block_elements: 65,536 or 16,384.
            threshold: () int32 on the device: only changes with at least this key are sent, see
                `topk_threshold`. None sends all.
            ages: one byte per element of the only tensor, contiguous, updated in place: the number
                of consecutive packs that did not send the element's change. A deferred block keeps
                its ages. None to ignore ages.
            age_limit: age at which a change is sent whatever its key.
            arena_words: room for the payload, in words. None for a word per 8 elements; then a
                dense delta has deferred blocks.

        Raises:
            InvalidArgument: a tensor has more than four separate dimensions, or the ages are not
                contiguous.
        """
        packed, newest = _room_for(new, base_digests, block_elements, arena_words)
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
            threshold=_address(threshold),
            ages=_ages_at(ages),
            age_limit=age_limit,
        )
        return packed

    def delta_apply(
        self,
        weights: Sequence[Any],
        deltas: Sequence[DeltaLike],
        names: Sequence[str],
        *,
        undo: bool,
        verify: bool = False,
    ) -> None:
        """Apply deltas to tensors of one GPU, all or none, with one copy.

        The device checks each block, and with `verify` measures how the digest of each tensor
        changes. If a block is corrupt, or a delta states another change, all deltas are undone.
        """
        check_sizes(deltas, weights, names)
        needs_check = not all(delta.is_checked for delta in deltas)
        tables = tables_of(deltas, weights[0])
        blocks = [delta.block_elements for delta in deltas]
        lowest, sums = self.apply_blocks(weights, tables, blocks, undo=undo, has_digest=verify)
        bad = int(lowest) if needs_check else -1
        wrong = None if sums is None else _first_wrong(pairs_of(sums), deltas, undo=undo)
        if bad == -1 and wrong is None:
            return
        # The sound blocks are applied. Undoing restores them, whatever the bad blocks contain.
        self.apply_blocks(weights, tables, blocks, undo=not undo)
        if wrong is not None and bad == -1:
            refuse_base(names[wrong], undo=undo)
        check_all(deltas, names)  # raises, with the reason
        raise InternalError(f"the device refuses block {bad} of a sound delta")

    def apply_blocks(
        self,
        weights: Sequence[Any],
        tables: Sequence[Sequence[Any]],
        block_elements: Sequence[int],
        *,
        undo: bool = False,
        has_digest: bool = False,
    ) -> tuple[Any, Any]:
        """Apply or undo the sound blocks of several deltas; up to 23 tensors share a launch.

        The soundness of a block depends on the delta only, so `undo` exactly reverses an apply,
        even of a delta with bad blocks.

        Args:
            weights: tensors of one GPU, changed in place.
            tables: three arrays per delta. The block table: (blocks,) int64, one u64 per block. The
                start of each block's payload in words: (blocks,) int64, in any order. The payload:
                (words,) int32, the bits of u32 words.
            block_elements: 65,536 or 16,384 for each delta, as packed.
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
        self,
        new: Any,
        shadow: Any,
        *,
        budget: int,
        ages: Any = None,
        age_limit: int = AGE_LIMIT,
        threads: int = 1,  # noqa: ARG002 - the device has its own
    ) -> int:
        """Return the smallest threshold >= 1 that at most `budget` changed bf16 elements reach.

        Due changes count towards `budget`, and are sent in any case. The ages are not updated. The
        threshold is 32,768 if even the largest key has too many changes.
        """
        return int(self.find_threshold(new, shadow, budget=budget, ages=ages, age_limit=age_limit))

    def find_threshold(
        self, new: Any, shadow: Any, *, budget: int, ages: Any = None, age_limit: int = AGE_LIMIT
    ) -> Any:
        """Return the threshold of `topk_threshold` as () int32 on the device."""
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
        self, base: Any, delta: DeltaLike
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        """List positions and new bits of a delta's changes; the device checks each block."""
        check_sizes([delta], [base], [""])
        changed = delta.changed_by_block.astype(np.int64)
        total = int(changed.sum())
        if total > delta.count:
            delta_check(delta)
        # The number of changes before each block, then -1: no bad block yet.
        numbers = np.append(np.cumsum(changed) - changed, np.int64(-1))
        ((entries, offsets, there, payload),) = tables_of([delta], base, [numbers])
        firsts, bad_block = there[:-1], there[-1]
        positions = torch.empty(total, dtype=torch.int64, device=base.device)
        values = torch.empty(total, dtype=base.dtype, device=base.device)
        self._codec.topk_unpack(
            entries=entries.data_ptr(),
            offsets=offsets.data_ptr(),
            first_outputs=firsts.data_ptr(),
            payload=payload.data_ptr(),
            payload_words=payload.numel(),
            base=base.data_ptr(),
            width=_width_of(base),
            count=base.numel(),
            block_elements=delta.block_elements,
            base_box=box_of("base", base),
            positions=positions.data_ptr(),
            values=values.data_ptr(),
            output_count=total,
            bad_block=bad_block.data_ptr(),
            stream=_stream_of(base),
        )
        bad = int(bad_block)
        if bad == -1:
            return positions.cpu().numpy(), values.cpu().numpy().view(f"u{delta.width // 8}")
        delta_check(delta)  # raises, with the reason
        raise InternalError(f"the device refuses block {bad} of a sound delta")

    def digest(self, bits: Any, *, threads: int = 1) -> tuple[int, int]:  # noqa: ARG002
        """Return the digest, computed on the device."""
        return pairs_of(self.digests([bits]))[0]

    def digests(self, tensors: Sequence[Any]) -> Any:
        """Return the digests of tensors of one GPU, (tensors, 2) int64 with the bits of u64."""
        sums = torch.zeros(len(tensors), 2, dtype=torch.int64, device=tensors[0].device)
        for one, pair in zip(tensors, sums, strict=True):
            self._codec.digest(
                bits=one.data_ptr(),
                width=_width_of(one),
                count=one.numel(),
                bits_box=box_of("bits", one),
                sums=pair.data_ptr(),
                stream=_stream_of(one),
            )
        return sums


def _width_of(bits: Any) -> int:
    return 8 * int(bits.element_size())


def _fetched(packed: PackedBlocks) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
    """Copy the table and the payload of the blocks that are not deferred to the host."""
    table, words = 2 * packed.blocks, int(packed.words)
    if words > packed.arena.numel():  # deferred blocks have no words in the table
        words = int(sizes_of(on_host(packed.row[:table]).view(np.uint64)).sum())
    row = on_host(packed.row[: table + words])
    return row[:table].view(np.uint64), row[table:].view(np.uint32)


def _first_wrong(
    changes: Sequence[tuple[int, int]], deltas: Sequence[DeltaLike], *, undo: bool
) -> int | None:
    """Return the index of the first delta whose stated digests contradict the measured change."""
    for at, (change, delta) in enumerate(zip(changes, deltas, strict=True)):
        before, after = delta.base_digest, delta.digest
        if undo:
            before, after = after, before
        if any(
            (old + by - new) & MASK64 for old, by, new in zip(before, change, after, strict=True)
        ):
            return at
    return None


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
