"""Apply: decode delta blocks into differences, and add them. The host has checked the delta."""

from collections.abc import Iterator
from typing import Any, Final

import torch
import triton
import triton.language as tl

from rose.kernels.block_plan import EMPTY, RAW, elements_of, plan_to_read
from rose.kernels.tile import (
    LAUNCH,
    TILE,
    bits_of_set,
    field,
    four,
    parts_of,
    positions,
    row_of,
    store_bits,
)
from rose.units import ceil_div

_EMPTY, _RAW = tl.constexpr(EMPTY), tl.constexpr(RAW)
# `resize_kernel` has two uses. Each is named by the group of `BlockPlan.table` that describes the
# positions of the resized changes.
LISTED: Final = 4
LARGE: Final = 5
_LISTED = tl.constexpr(LISTED)


@triton.jit
def steps_kernel(
    table: tl.tensor,
    offsets: tl.tensor,
    payload: tl.tensor,
    differences: tl.tensor,
    lanes: tl.tensor,
    width: tl.constexpr,
    block_elements: tl.constexpr,
) -> None:
    """One program per delta block writes 1 or -1 for each change into the zeroed `differences`.

    The place of each change in the block is written to `lanes`. A RAW block gets its final
    differences.
    """
    block = tl.program_id(0).to(tl.int64)
    kind, elements, _, _ = four(table, block, 0)
    _, _, signs_at, _ = four(table, block, 1)
    section = payload + tl.load(offsets + block)
    differences += block * block_elements
    if kind == _RAW:
        for at in range(0, elements, TILE):
            lane = at + tl.arange(0, TILE)
            bits = field(section, lane, width, lane < elements)
            store_bits(differences + lane, bits, lane < elements, width)
    elif kind != _EMPTY:
        places = four(table, block, 3)
        found = 0
        for at in range(0, bits_of_set(places), TILE):
            is_there, rank, lane, found = positions(section, places, at, found)
            is_down = field(section + signs_at, rank, 1, is_there)
            store_bits(differences + lane, 1 - 2 * is_down, is_there, width)
            tl.store(lanes + block * block_elements + rank, lane, mask=is_there)


@triton.jit
def resize_kernel(
    table: tl.tensor,
    offsets: tl.tensor,
    payload: tl.tensor,
    differences: tl.tensor,
    lanes: tl.tensor,
    listed_lanes: tl.tensor,
    width: tl.constexpr,
    block_elements: tl.constexpr,
    which: tl.constexpr,
) -> None:
    """One program per delta block sets the sizes of listed or large changes; signs stay the same.

    `lanes` holds the position of each change in the block; for `LARGE`, of each listed change. The
    positions of the resized changes are written to `listed_lanes`.
    """
    block = tl.program_id(0).to(tl.int64)
    _, _, changed, listed = four(table, block, 0)
    m, _, _, _ = four(table, block, 1)
    magnitudes_at, large_at, least, _ = four(table, block, 2)
    place = four(table, block, which)
    section = payload + tl.load(offsets + block)
    first = block * block_elements
    all_of = 0
    fields = section + large_at
    bits = width
    if which == _LISTED:
        all_of = tl.where(listed == changed, listed, 0)  # There are no ranks if all are listed.
        fields = section + magnitudes_at
        bits = m
    found = 0
    for at in range(0, tl.maximum(bits_of_set(place), all_of), TILE):
        is_there, index, change, found = positions(section, place, at, found)
        if all_of > 0:
            index = at + tl.arange(0, TILE)
            change = index
            is_there = index < all_of
        lane = tl.load(lanes + first + change, mask=is_there, other=0)
        tl.store(listed_lanes + first + index, lane, mask=is_there)
        size = field(fields, index, bits, is_there) + least
        old = tl.load(differences + first + lane, mask=is_there, other=0).to(tl.int32)
        store_bits(differences + first + lane, tl.where(old < 0, -size, size), is_there, width)


def differences_of(
    entries: Any, offsets: Any, payload: Any, *, like: Any, block_elements: int
) -> Iterator[tuple[slice, Any]]:
    """Yield the differences that sound blocks make in a row, part by part.

    All memory is allocated before the first part, so that no allocation fails after a caller has
    applied some of the parts.

    Args:
        entries: (blocks,) int64, the delta's table: one u64 for each block.
        offsets: (blocks,) int64, start of each block's payload, in words; in any order.
        payload: (words,) int32 with the bits of u32 words.
        like: (count,) int8, int16 or int32, the row; its values are not read.
        block_elements: elements per block.

    Yields:
        The place of the part in the row, and the differences, which the next part overwrites.
    """
    count, width = len(like), 8 * like.element_size()
    elements = elements_of(count, block_elements, like.device)
    plan = plan_to_read(entries, offsets, payload, elements, width)
    parts = list(parts_of(count))
    room = ceil_div(parts[0].stop, block_elements) * block_elements if parts else 0
    differences = torch.empty(room, dtype=like.dtype, device=like.device)
    lanes, listed_lanes = torch.empty((2, room), dtype=torch.int32, device=like.device)
    sizes = {"width": width, "block_elements": block_elements, **LAUNCH}
    for part in parts:
        blocks = slice(part.start // block_elements, ceil_div(part.stop, block_elements))
        operands = plan.table[blocks], offsets[blocks], payload, differences.zero_()
        programs = (blocks.stop - blocks.start,)
        # Three launches: each reads what other threads wrote in the previous one.
        with torch.cuda.device_of(like):
            steps_kernel[programs](*operands, lanes, **sizes)
            resize_kernel[programs](*operands, lanes, listed_lanes, which=LISTED, **sizes)
            resize_kernel[programs](*operands, listed_lanes, lanes, which=LARGE, **sizes)
        yield part, differences[: part.stop - part.start]


def delta_apply(
    weights: Any, entries: Any, offsets: Any, payload: Any, *, block_elements: int, undo: bool
) -> None:
    """Apply or undo a delta, without waiting for the device.

    Args:
        weights: int8, int16 or int32, changed in place.
        entries: see `differences_of`.
        offsets: see `differences_of`.
        payload: see `differences_of`.
        block_elements: elements per block.
        undo: True restores the bits from before the delta.
    """
    row = row_of(weights)
    for part, change in differences_of(
        entries, offsets, payload, like=row, block_elements=block_elements
    ):
        row[part].sub_(change) if undo else row[part].add_(change)
    if not weights.is_contiguous():
        weights.copy_(row.view(weights.shape))
