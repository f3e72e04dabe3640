"""Turn delta blocks into differences. The host found the delta sound: nothing is checked here."""

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl

from rose.kernels.block_plan import EMPTY, GROUP_ELEMENTS, RAW, elements_of, plan_to_read
from rose.kernels.gap_code import bits_of_set, field, four, positions
from rose.kernels.tile import LAUNCH, TILE, store_bits
from rose.units import ceil_div

_EMPTY, _RAW = tl.constexpr(EMPTY), tl.constexpr(RAW)


@triton.jit
def resize(
    differences: tl.tensor,
    section: tl.tensor,
    place: tl.tuple,
    all_of: tl.tensor,
    fields: tl.tensor,
    bits: tl.tensor,
    least: tl.tensor,
    lanes: tl.tensor,
    kept_lanes: tl.tensor,
    width: tl.constexpr,
) -> None:
    """Give the changes of a set the sizes in `fields`; their signs are right already.

    The set is that at `place`, or the first `all_of` changes. `lanes` says where each change lies;
    of the changes in the set that goes to `kept_lanes`.
    """
    found = 0
    for at in range(0, tl.maximum(bits_of_set(place), all_of), TILE):
        is_there, index, change, found = positions(section, place, at, found)
        if all_of > 0:
            index = at + tl.arange(0, TILE)
            change = index
            is_there = index < all_of
        lane = tl.load(lanes + change, mask=is_there, other=0)
        tl.store(kept_lanes + index, lane, mask=is_there)
        size = field(fields, index, bits, is_there) + least
        old = tl.load(differences + lane, mask=is_there, other=0).to(tl.int32)
        store_bits(differences + lane, tl.where(old < 0, -size, size), is_there, width)
    tl.debug_barrier()  # separates these writes from the next reads by other threads


@triton.jit
def decode_kernel(
    table: tl.tensor,
    offsets: tl.tensor,
    payload: tl.tensor,
    differences: tl.tensor,
    scratch: tl.tensor,
    width: tl.constexpr,
    block_elements: tl.constexpr,
) -> None:
    """One program per delta block writes all changes as steps of 1, then listed sizes, then large.

    `differences` is zero. `scratch` holds two numbers for each element: where each change lies in
    the block, and where each listed change lies.
    """
    block = tl.program_id(0).to(tl.int64)
    kind, elements, changed, listed = four(table, block, 0)
    m, _, signs_at, _ = four(table, block, 1)
    magnitudes_at, large_at, least, _ = four(table, block, 2)
    places, ranks, large_ranks = four(table, block, 3), four(table, block, 4), four(table, block, 5)
    section = payload + tl.load(offsets + block)
    differences += block * block_elements
    lanes = scratch + 2 * block * block_elements
    listed_lanes = lanes + block_elements
    if kind == _RAW:
        for at in range(0, elements, TILE):
            lane = at + tl.arange(0, TILE)
            bits = field(section, lane, width, lane < elements)
            store_bits(differences + lane, bits, lane < elements, width)
    elif kind != _EMPTY:
        found = 0
        for at in range(0, bits_of_set(places), TILE):
            is_there, rank, lane, found = positions(section, places, at, found)
            is_down = field(section + signs_at, rank, 1, is_there)
            store_bits(differences + lane, 1 - 2 * is_down, is_there, width)
            tl.store(lanes + rank, lane, mask=is_there)
        tl.debug_barrier()  # separates these writes from the next reads by other threads
        all_of = tl.where(listed == changed, listed, 0)
        magnitudes = section + magnitudes_at
        resize(
            differences, section, ranks, all_of, magnitudes, m, least, lanes, listed_lanes, width
        )
        larges = section + large_at
        resize(
            differences, section, large_ranks, 0, larges, width, least, listed_lanes, lanes, width
        )


def decoded(
    entries: Any, offsets: Any, payload: Any, *, like: Any, block_elements: int
) -> Iterator[tuple[slice, Any]]:
    """Yield what sound blocks add to the elements of a row, part by part.

    All memory is taken before the first part is there, so a caller that changes something by it is
    not left with half of it changed.

    Args:
        entries: (blocks,) int64, the u64 of the delta's table.
        offsets: (blocks,) int64, where each block's payload starts, in words; in any order.
        payload: int32 that holds u32 words.
        like: (count,) int8, int16 or int32, the row; its values are not read.
        block_elements: elements of a block.

    Yields:
        Where the part lies in the row, and its differences, which the next part overwrites.
    """
    count, width = len(like), 8 * like.element_size()
    elements = elements_of(count, block_elements, like.device)
    plan = plan_to_read(entries, offsets, payload, elements, width)
    room = min(GROUP_ELEMENTS, ceil_div(count, block_elements) * block_elements)
    differences = torch.empty(room, dtype=like.dtype, device=like.device)
    scratch = torch.empty(2 * room, dtype=torch.int32, device=like.device)
    for at in range(0, count, GROUP_ELEMENTS):
        part = slice(at, min(at + GROUP_ELEMENTS, count))
        first, last = at // block_elements, ceil_div(part.stop, block_elements)
        with torch.cuda.device_of(like):
            decode_kernel[(last - first,)](
                plan.table[first:last],
                offsets[first:last],
                payload,
                differences.zero_(),
                scratch,
                width=width,
                block_elements=block_elements,
                **LAUNCH,
            )
        yield part, differences[: part.stop - at]
