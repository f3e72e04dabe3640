"""What the sound blocks of a delta change.

`delta_apply` and `topk_unpack` differ only in where a change goes.
"""

from dataclasses import dataclass
from typing import Any, Final

import torch
import triton
import triton.language as tl

from rose.kernels import operands
from rose.kernels.block_check import check_blocks, fields_of
from rose.kernels.gap_code import (
    GAP,
    RAW,
    clear,
    field,
    high_words,
    layout,
    positions,
    set_field,
    words,
)
from rose.kernels.tile import LAUNCH, TILE

# Programs that share the blocks among them. More than any device runs at once, and few enough that
# their marks take 8 MiB.
PROGRAMS: Final = 1024


@triton.jit
def mark_exceptions(
    marks: tl.tensor,
    ranks: tl.tensor,
    lows: tl.tensor,
    changed: tl.tensor,
    exceptions: tl.tensor,
) -> None:
    """Set a bit in `marks` for each change that is an exception, for all threads to see."""
    tl.debug_barrier()  # separates the reads for the block before from these writes
    clear(marks, words(changed))
    found = 0
    for at in range(0, 32 * high_words(changed, exceptions), TILE):
        is_set, _, rank = positions(ranks, lows, at, found, changed, exceptions)
        set_field(marks, rank, 1, is_set, is_set)
        found += tl.sum(is_set.to(tl.int32), 0)
    tl.debug_barrier()  # separates the marks from the reads of other threads


@triton.jit
def put(
    position: tl.tensor,
    rank: tl.tensor,
    bits: tl.tensor,
    mask: tl.tensor,
    base: tl.tensor,
    weights: tl.tensor,
    found: tl.tensor,
    values: tl.tensor,
    room: tl.tensor,
) -> None:
    """Write what changes to: into `weights`, or beside its position into the lists of top-k."""
    if found is None:
        tl.store(weights + position, bits.to(tl.int16), mask=mask)
    else:
        fits = mask & (rank < room)
        tl.store(found + rank, base + position, mask=fits)
        tl.store(values + rank, bits.to(tl.int16), mask=fits)


@triton.jit
def change_block(
    entry: tl.tensor,
    section: tl.tensor,
    marks: tl.tensor,
    weights: tl.tensor,
    base: tl.tensor,
    elements: tl.tensor,
    found: tl.tensor,
    values: tl.tensor,
    room: tl.tensor,
    undo: tl.constexpr,
) -> None:
    """Put each change of a sound block.

    `base` is where the block starts, and `weights` points there. `found` and `values` are None, or
    point to where its changes are listed, `room` of them at most.
    """
    kind, changed, exceptions, _ = fields_of(entry)
    rank_base = 0
    exception_base = 0
    if kind == GAP:
        lows_at, signs_at, ranks_at, rank_lows_at, values_at, _ = layout(
            elements, changed, exceptions
        )
        if exceptions > 0:
            ranks, lows = section + ranks_at, section + rank_lows_at
            mark_exceptions(marks, ranks, lows, changed, exceptions)
        for at in range(0, 32 * lows_at, TILE):
            lows = section + lows_at
            is_set, rank, position = positions(section, lows, at, rank_base, elements, changed)
            exception = field(marks, rank, 1, is_set & (exceptions > 0))
            exception_rank = exception_base + tl.cumsum(exception, 0) - exception
            xor = field(section + values_at, exception_rank, 16, exception > 0)
            step = 1 - 2 * field(section + signs_at, rank, 1, is_set)
            if undo:
                step = -step
            old = tl.load(weights + position, mask=is_set, other=0).to(tl.int32)
            bits = tl.where(exception > 0, old ^ xor, old + step)
            put(position, rank, bits, is_set, base, weights, found, values, room)
            rank_base += tl.sum(is_set.to(tl.int32), 0)
            exception_base += tl.sum(exception, 0)
    if kind == RAW:
        for at in range(0, elements, TILE):
            position = at + tl.arange(0, TILE)
            xor = field(section, position, 16, position < elements)
            is_set = xor != 0
            change = is_set.to(tl.int32)
            rank = rank_base + tl.cumsum(change, 0) - change
            bits = tl.load(weights + position, mask=is_set, other=0).to(tl.int32) ^ xor
            put(position, rank, bits, is_set, base, weights, found, values, room)
            rank_base += tl.sum(change, 0)


@triton.jit(do_not_specialize=["count", "capacity"])
def change_blocks_kernel(
    weights: tl.tensor,
    entries: tl.tensor,
    offsets: tl.tensor,
    payload: tl.tensor,
    verdicts: tl.tensor,
    marks: tl.tensor,
    count: tl.int64,
    firsts: tl.tensor,
    found: tl.tensor,
    values: tl.tensor,
    capacity: tl.int64,
    block_elements: tl.constexpr,
    undo: tl.constexpr,
) -> None:
    """One program per delta block at a time, of those that `check_blocks` found sound.

    With `firsts`, `found` and `values`, changes are listed there from `firsts` of their block on;
    without, `weights` changes.
    """
    program = tl.program_id(0).to(tl.int64)
    marks += program * (block_elements // 32)
    blocks = (count + block_elements - 1) // block_elements
    for block in range(program, blocks, tl.num_programs(0)):
        base = block * block_elements
        elements = tl.minimum(count - base, block_elements).to(tl.int32)
        entry = tl.load(entries + block)
        offset = tl.load(offsets + block)
        block_found = None
        block_values = None
        room = 0
        if found is not None:
            first = tl.load(firsts + block)
            block_found = found + first
            block_values = values + first
            room = tl.maximum(tl.minimum(capacity - first, block_elements), 0).to(tl.int32)
        if tl.load(verdicts + block) > 0:
            change_block(
                entry,
                payload + offset,
                marks,
                weights + base,
                base,
                elements,
                block_found,
                block_values,
                room,
                undo,
            )


@dataclass(frozen=True, slots=True)
class Lists:
    """Where changes are listed instead of applied.

    Args:
        firsts: (blocks,) int64, where each block's changes start in the lists.
        positions: (capacity,) int64.
        values: (capacity,) int16.
    """

    firsts: Any
    positions: Any
    values: Any


def change_blocks(
    weights: Any,
    entries: Any,
    offsets: Any,
    payload: Any,
    *,
    block_elements: int,
    undo: bool = False,
    to: Lists | None = None,
) -> Any:
    """Change `weights` by the sound blocks of a delta, or list their changes.

    Returns:
        int32 scalar on the device: the lowest block that is not sound, or -1.

    Raises:
        InvalidArgument: the tensors do not go together, or one is of another type.
    """
    operands.check_table(entries, offsets, payload, weights, block_elements)
    count = weights.numel()
    verdicts, errors = check_blocks(
        entries, offsets, payload, count=count, block_elements=block_elements
    )
    blocks = entries.numel()
    if not blocks:
        return errors
    programs = min(blocks, PROGRAMS)
    marks = torch.empty(programs * (block_elements // 32), dtype=torch.int32, device=weights.device)
    with operands.on_device_of(weights):
        change_blocks_kernel[(programs,)](
            weights,
            entries,
            offsets,
            payload,
            verdicts,
            marks,
            count,
            None if to is None else to.firsts,
            None if to is None else to.positions,
            None if to is None else to.values,
            0 if to is None else to.positions.numel(),
            block_elements=block_elements,
            undo=undo,
            **LAUNCH,
        )
    return errors
