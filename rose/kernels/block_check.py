"""Whether the blocks of a delta are sound, which is judged before anything is changed.

A block that passes has one meaning, but for what only the weights can tell. Nothing is read outside
the payload, whatever the table and the payload hold.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from rose.kernels import operands
from rose.kernels.block_body import changes_at, fields_of, mark_ranks, shape_of
from rose.kernels.body_code import layout
from rose.kernels.gap_code import (
    BITMAP,
    EMPTY,
    GAP,
    RAW,
    field,
    high_bits,
    low_bits,
    positions,
    words,
)
from rose.kernels.tile import LAUNCH, TILE


@triton.jit
def is_tail_clear(section: tl.tensor, start: tl.tensor, bits: tl.tensor) -> tl.tensor:
    """Say whether what follows the `bits` bits from word `start` on in their last word is 0."""
    used = bits & 31
    last = tl.load(section + (start + (bits >> 5)), mask=used > 0, other=0).to(tl.uint32)
    return (last >> used.to(tl.uint32)) == 0


@triton.jit
def are_positions_sound(
    section: tl.tensor,
    high_at: tl.tensor,
    lows_at: tl.tensor,
    universe: tl.tensor,
    count: tl.tensor,
    is_bitmap: tl.tensor,
) -> tl.tensor:
    """Say whether a section holds `count` positions, ascending and below `universe`, and no more.

    A bit that is set behind the section is a position that is too large.
    """
    bits = tl.where(is_bitmap, universe, high_bits(universe, count))
    low = tl.where(is_bitmap, 0, low_bits(universe, count))
    found = 0
    faults = 0
    for at in range(0, 32 * words(bits), TILE):
        is_set, rank, position = positions(
            section, high_at, lows_at, at, found, bits, low, count, is_bitmap
        )
        # Neighbours in a high section share their high bits, so their low bits must ascend.
        bit = at + tl.arange(0, TILE)
        may_twin = is_set & (bit > 0) & (rank < count) & (is_bitmap == 0)
        has_twin = field(section, high_at, bit - 1, 1, may_twin) > 0
        twin_low = field(section, lows_at, rank - 1, low, has_twin)
        is_fault = (is_set & (position >= universe)) | (
            has_twin & (twin_low >= (position & ((1 << low) - 1)))
        )
        faults += tl.sum(is_fault.to(tl.int32), 0)
        found += tl.sum(is_set.to(tl.int32), 0)
    return (found == count) & (faults == 0) & is_tail_clear(section, lows_at, count * low)


@triton.jit
def are_sections_sound(
    section: tl.tensor,
    sections: tl.tuple,
    is_bitmap: tl.tensor,
    elements: tl.tensor,
    changed: tl.tensor,
    listed: tl.tensor,
    m: tl.tensor,
    large: tl.tensor,
    width: tl.constexpr,
) -> tl.tensor:
    """Judge positions, ranks and large ranks, and that no unused bit is set."""
    lows_at, signs_at, _, ranks_at, rank_lows_at, magnitudes_at, large_ranks_at, _, _, _ = sections
    _, _, _, _, _, _, _, large_lows_at, large_at, _ = sections
    is_good = is_tail_clear(section, signs_at, changed)
    is_good = is_good & is_tail_clear(section, magnitudes_at, m * listed)
    is_good = is_good & is_tail_clear(section, large_at, width * large)
    faults = 0
    # One loop of three, because the code in it is long.
    for which in range(3):
        is_first = which == 0
        is_ranks = which == 1
        high_at = tl.where(is_first, 0, tl.where(is_ranks, ranks_at, large_ranks_at))
        low_at = tl.where(is_first, lows_at, tl.where(is_ranks, rank_lows_at, large_lows_at))
        universe = tl.where(is_first, elements, tl.where(is_ranks, changed, listed))
        count = tl.where(is_first, changed, tl.where(is_ranks, listed, large))
        if (count > 0) & ((is_ranks & (listed == changed)) == 0):
            is_sound = are_positions_sound(
                section, high_at, low_at, universe, count, is_bitmap & is_first
            )
            faults += (is_sound == 0).to(tl.int32)
    return is_good & (faults == 0)


@triton.jit
def are_sizes_sound(
    section: tl.tensor,
    sections: tl.tuple,
    marks: tl.tensor,
    large_marks: tl.tensor,
    is_bitmap: tl.tensor,
    elements: tl.tensor,
    changed: tl.tensor,
    listed: tl.tensor,
    m: tl.tensor,
    large: tl.tensor,
    width: tl.constexpr,
) -> tl.tensor:
    """Say whether each listed size is one that a difference has, and coded as it must be."""
    mark_ranks(section, sections, marks, large_marks, changed, listed, large)
    least = tl.where(listed == changed, 1, 2)
    bits = tl.where(is_bitmap, elements, high_bits(elements, changed))
    faults = 0
    rank_base = 0
    listed_base = 0
    large_base = 0
    for at in range(0, bits, TILE):
        is_set, _, _, is_down, is_listed, is_large, small, magnitude = changes_at(
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
        # The size of a difference that goes down may be one more.
        most = (1 << (width - 1)) - 1 - least + is_down.to(tl.int32)
        is_fault = is_listed & (magnitude.to(tl.uint32) > most.to(tl.uint32))
        is_small = (magnitude.to(tl.uint32) >> m.to(tl.uint32)) == 0
        is_fault = is_fault | (is_large & (is_small | (small != 0)))
        faults += tl.sum(is_fault.to(tl.int32), 0)
        rank_base += tl.sum(is_set.to(tl.int32), 0)
        listed_base += tl.sum(is_listed.to(tl.int32), 0)
        large_base += tl.sum(is_large.to(tl.int32), 0)
    return faults == 0


@triton.jit
def is_raw_sound(
    section: tl.tensor, elements: tl.tensor, changed: tl.tensor, width: tl.constexpr
) -> tl.tensor:
    """Judge the elements of a RAW block, whose counts and size are sound."""
    changes = tl.zeros((TILE,), tl.int32)
    for at in range(0, elements, TILE):
        lane = at + tl.arange(0, TILE)
        changes += (field(section, 0, lane, width, lane < elements) != 0).to(tl.int32)
    return (tl.sum(changes, 0) == changed) & is_tail_clear(section, 0, width * elements)


@triton.jit
def is_sound(
    entry: tl.tensor,
    offset: tl.tensor,
    payload: tl.tensor,
    payload_words: tl.tensor,
    marks: tl.tensor,
    large_marks: tl.tensor,
    elements: tl.tensor,
    width: tl.constexpr,
) -> tl.tensor:
    """Judge a block by its entry and by its payload, which starts at `offset`."""
    kind, changed, listed, size = fields_of(entry)
    raw_words = words(width * elements)
    is_bitmap = kind == BITMAP
    is_coded = (size < raw_words) & ((kind == GAP) | is_bitmap)
    is_good = entry == EMPTY
    is_counted = (changed > 0) & (changed <= elements) & (listed <= changed)
    if is_counted & (offset >= 0) & (offset <= payload_words - size):
        section = payload + offset
        if (kind == RAW) & (size == raw_words) & (listed == 0):
            is_good = is_raw_sound(section, elements, changed, width)
        if is_coded:
            m, large = shape_of(section, is_bitmap, elements, changed, listed, size)
            sections = layout(is_bitmap, elements, changed, listed, m, large, width)
            _, _, _, _, _, _, _, _, _, end = sections
            if (m < width) & (large <= listed) & (end == size):
                is_good = are_sections_sound(
                    section, sections, is_bitmap, elements, changed, listed, m, large, width
                )
                # Marks are written by sections that are sound only: within their bounds.
                if is_good & (listed > 0):
                    is_good = are_sizes_sound(
                        section,
                        sections,
                        marks,
                        large_marks,
                        is_bitmap,
                        elements,
                        changed,
                        listed,
                        m,
                        large,
                        width,
                    )
    return is_good


@triton.jit(do_not_specialize=["count", "payload_words", "first", "last"])
def check_blocks_kernel(
    entries: tl.tensor,
    offsets: tl.tensor,
    payload: tl.tensor,
    marks: tl.tensor,
    verdicts: tl.tensor,
    errors: tl.tensor,
    count: tl.int64,
    payload_words: tl.int64,
    first: tl.int64,
    last: tl.int64,
    width: tl.constexpr,
    block_elements: tl.constexpr,
) -> None:
    """One program per delta block at a time, of those from `first` to `last`, writes its verdict.

    `errors` is unsigned, so that -1, for none, is more than any block.
    """
    program = tl.program_id(0).to(tl.int64)
    marks += program * (block_elements // 16)
    for block in range(first + program, last, tl.num_programs(0)):
        elements = tl.minimum(count - block * block_elements, block_elements).to(tl.int32)
        is_good = is_sound(
            tl.load(entries + block),
            tl.load(offsets + block),
            payload,
            payload_words,
            marks,
            marks + block_elements // 32,
            elements,
            width,
        )
        tl.store(verdicts + block, is_good.to(tl.int8))
        tl.atomic_min(errors, block, mask=is_good == 0, sem="relaxed")


def check_blocks(
    entries: Any,
    offsets: Any,
    payload: Any,
    marks: Any,
    *,
    count: int,
    width: int,
    block_elements: int,
    blocks: range,
) -> tuple[Any, Any]:
    """Judge some blocks, at least one, of a table that was checked against `count` elements.

    Args:
        marks: int32, a bit for each element of a block, twice, for each program.

    Returns:
        (blocks,) int8, 1 for each block that is sound; and the lowest other one as int32, or -1.
    """
    verdicts = torch.empty(entries.numel(), dtype=torch.int8, device=entries.device)
    errors = torch.full((), -1, dtype=torch.int32, device=entries.device)
    with operands.on_device_of(entries):
        check_blocks_kernel[(marks.numel() // (block_elements // 16),)](
            entries,
            offsets,
            payload,
            marks,
            verdicts,
            errors.view(torch.uint32),
            count,
            payload.numel(),
            blocks.start,
            blocks.stop,
            width=width,
            block_elements=block_elements,
            **LAUNCH,
        )
    return verdicts, errors
