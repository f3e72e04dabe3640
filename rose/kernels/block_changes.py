"""What the sound blocks of a delta change.

`delta_apply` and `topk_unpack` differ only in where a change goes.
"""

from dataclasses import dataclass
from typing import Any, Final

import torch
import triton
import triton.language as tl

from rose.kernels import operands
from rose.kernels.block_body import changes_at, fields_of, mark_ranks, shape_of
from rose.kernels.block_check import check_blocks
from rose.kernels.body_code import layout
from rose.kernels.box import box_of
from rose.kernels.gap_code import BITMAP, EMPTY, RAW, field, high_bits
from rose.kernels.tile import LAUNCH, TILE, place, store_bits

# Programs that share the blocks among them. More than any device runs at once, and few enough that
# their marks take 16 MiB.
PROGRAMS: Final = 1024


@triton.jit
def put(
    position: tl.tensor,
    rank: tl.tensor,
    difference: tl.tensor,
    mask: tl.tensor,
    weights: tl.tensor,
    box: tl.tuple,
    base: tl.tensor,
    found: tl.tensor,
    values: tl.tensor,
    room: tl.tensor,
    width: tl.constexpr,
) -> None:
    """Write what changes to: into `weights`, or beside its position into the lists of top-k."""
    places = place(weights, base, position, box)
    bits = tl.load(places, mask=mask, other=0).to(tl.int32) + difference
    if found is None:
        store_bits(places, bits, mask, width)
    else:
        fits = mask & (rank < room)
        tl.store(found + rank, base + position, mask=fits)
        store_bits(values + rank, bits, fits, width)


@triton.jit
def change_block(
    entry: tl.tensor,
    section: tl.tensor,
    marks: tl.tensor,
    large_marks: tl.tensor,
    weights: tl.tensor,
    box: tl.tuple,
    base: tl.tensor,
    elements: tl.tensor,
    found: tl.tensor,
    values: tl.tensor,
    room: tl.tensor,
    width: tl.constexpr,
    undo: tl.constexpr,
) -> None:
    """Put each change of a sound block.

    `base` is where the block starts. `found` and `values` are None, or point to where its changes
    are listed, `room` of them at most.
    """
    kind, changed, listed, size = fields_of(entry)
    rank_base = 0
    listed_base = 0
    large_base = 0
    if kind == RAW:
        for at in range(0, elements, TILE):
            position = at + tl.arange(0, TILE)
            difference = field(section, 0, position, width, position < elements)
            is_set = difference != 0
            change = is_set.to(tl.int32)
            rank = rank_base + tl.cumsum(change, 0) - change
            if undo:
                difference = -difference
            put(position, rank, difference, is_set, weights, box, base, found, values, room, width)
            rank_base += tl.sum(change, 0)
    elif kind != EMPTY:
        is_bitmap = kind == BITMAP
        m, large = shape_of(section, is_bitmap, elements, changed, listed, size)
        sections = layout(is_bitmap, elements, changed, listed, m, large, width)
        mark_ranks(section, sections, marks, large_marks, changed, listed, large)
        least = tl.where(listed == changed, 1, 2)
        bits = tl.where(is_bitmap, elements, high_bits(elements, changed))
        for at in range(0, bits, TILE):
            is_set, rank, position, is_down, is_listed, is_large, _, magnitude = changes_at(
                section,
                sections,
                marks,
                large_marks,
                at,
                (rank_base, listed_base, large_base),
                is_bitmap,
                elements,
                changed,
                listed,
                m,
                large,
                width,
            )
            change = tl.where(is_listed, magnitude + least, 1)
            is_less = is_down
            if undo:
                is_less = is_down == 0
            difference = tl.where(is_less, -change, change)
            put(position, rank, difference, is_set, weights, box, base, found, values, room, width)
            rank_base += tl.sum(is_set.to(tl.int32), 0)
            listed_base += tl.sum(is_listed.to(tl.int32), 0)
            large_base += tl.sum(is_large.to(tl.int32), 0)


@triton.jit(do_not_specialize=["count", "first", "last", "capacity"])
def change_blocks_kernel(
    weights: tl.tensor,
    box: tl.tuple,
    entries: tl.tensor,
    offsets: tl.tensor,
    payload: tl.tensor,
    verdicts: tl.tensor,
    marks: tl.tensor,
    count: tl.int64,
    first: tl.int64,
    last: tl.int64,
    starts: tl.tensor,
    found: tl.tensor,
    values: tl.tensor,
    capacity: tl.int64,
    width: tl.constexpr,
    block_elements: tl.constexpr,
    undo: tl.constexpr,
) -> None:
    """One program per delta block at a time, of those that `check_blocks` found sound.

    With `starts`, `found` and `values`, changes are listed there from `starts` of their block on;
    without, `weights` changes.
    """
    program = tl.program_id(0).to(tl.int64)
    marks += program * (block_elements // 16)
    for block in range(first + program, last, tl.num_programs(0)):
        base = block * block_elements
        elements = tl.minimum(count - base, block_elements).to(tl.int32)
        entry = tl.load(entries + block)
        offset = tl.load(offsets + block)
        block_found = None
        block_values = None
        room = 0
        if found is not None:
            start = tl.load(starts + block)
            block_found = found + start
            block_values = values + start
            room = tl.maximum(tl.minimum(capacity - start, block_elements), 0).to(tl.int32)
        if tl.load(verdicts + block) > 0:
            change_block(
                entry,
                payload + offset,
                marks,
                marks + block_elements // 32,
                weights,
                box,
                base,
                elements,
                block_found,
                block_values,
                room,
                width,
                undo,
            )


@dataclass(frozen=True, slots=True)
class Lists:
    """Where changes are listed instead of applied.

    Args:
        starts: (blocks,) int64, where each block's changes start in the lists.
        positions: (capacity,) int64.
        values: (capacity,) int8, int16 or int32, as the elements.
    """

    starts: Any
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
    blocks: range | None = None,
    to: Lists | None = None,
) -> Any:
    """Change `weights` by the sound blocks of a delta, or list their changes.

    Args:
        weights: what `operands.bits_of` gives.
        blocks: those to look at, in steps of one; None for all.

    Returns:
        int32 scalar on the device: the lowest of the blocks that is not sound, or -1.

    Raises:
        InvalidArgument: the tensors do not go together, or one is of another type.
    """
    operands.check_table(entries, offsets, payload, weights, block_elements)
    some = operands.some_blocks(blocks, entries.numel())
    box = box_of("weights", weights)
    if not some:
        return torch.full((), -1, dtype=torch.int32, device=weights.device)
    programs = min(len(some), PROGRAMS)
    marks = torch.empty(programs * (block_elements // 16), dtype=torch.int32, device=weights.device)
    count = weights.numel()
    width = operands.width_of(weights)
    verdicts, errors = check_blocks(
        entries,
        offsets,
        payload,
        marks,
        count=count,
        width=width,
        block_elements=block_elements,
        blocks=some,
    )
    with operands.on_device_of(weights):
        change_blocks_kernel[(programs,)](
            weights,
            box,
            entries,
            offsets,
            payload,
            verdicts,
            marks,
            count,
            some.start,
            some.stop,
            None if to is None else to.starts,
            None if to is None else to.positions,
            None if to is None else to.values,
            0 if to is None else to.positions.numel(),
            width=width,
            block_elements=block_elements,
            undo=undo,
            **LAUNCH,
        )
    return errors
