"""What a GAP or BITMAP block says, tile by tile, for those who judge it and those who change by it.

Which changes are listed, and which magnitudes are large, is marked first, a bit for each; then the
tiles are read in ascending order.
"""

import triton
import triton.language as tl

from rose.kernels.body_code import layout_to_shape
from rose.kernels.gap_code import (
    clear,
    field,
    high_bits,
    low_bits,
    positions,
    set_field,
    words,
)
from rose.kernels.tile import TILE


@triton.jit
def fields_of(entry: tl.tensor) -> tuple[tl.tensor, ...]:
    """Return kind, changed, listed and words of an entry, in int32."""
    kind = (entry & 15).to(tl.int32)
    changed = ((entry >> 4) & 0xFFFFF).to(tl.int32)
    listed = ((entry >> 24) & 0xFFFFF).to(tl.int32)
    return kind, changed, listed, ((entry >> 44) & 0xFFFFF).to(tl.int32)


@triton.jit
def shape_of(
    section: tl.tensor,
    is_bitmap: tl.tensor,
    elements: tl.tensor,
    changed: tl.tensor,
    listed: tl.tensor,
    size: tl.tensor,
) -> tuple[tl.tensor, ...]:
    """Return m, and how many magnitudes are large; zeros where a block has no shape to read."""
    _, _, shape_at = layout_to_shape(is_bitmap, elements, changed)
    has_shape = (listed > 0) & (shape_at < size)
    shape = tl.load(section + shape_at, mask=has_shape, other=0)
    return shape & 0xFF, (shape.to(tl.uint32) >> 8).to(tl.int32)


@triton.jit
def mark(
    marks: tl.tensor,
    section: tl.tensor,
    high_at: tl.tensor,
    lows_at: tl.tensor,
    universe: tl.tensor,
    count: tl.tensor,
) -> None:
    """Set a bit for each rank of a sound Elias-Fano section."""
    clear(marks, words(universe))
    bits = high_bits(universe, count)
    low = low_bits(universe, count)
    found = 0
    for at in range(0, bits, TILE):
        is_set, _, rank = positions(section, high_at, lows_at, at, found, bits, low, count, False)
        set_field(marks, 0, rank, 1, is_set.to(tl.int32), is_set)
        found += tl.sum(is_set.to(tl.int32), 0)


@triton.jit
def mark_ranks(
    section: tl.tensor,
    sections: tl.tuple,
    marks: tl.tensor,
    large_marks: tl.tensor,
    changed: tl.tensor,
    listed: tl.tensor,
    large: tl.tensor,
) -> None:
    """Mark which changes are listed, unless all are or none, and which magnitudes are large."""
    _, _, _, ranks_at, rank_lows_at, _, large_ranks_at, large_lows_at, _, _ = sections
    tl.debug_barrier()  # separates the reads for the block before from these writes
    if (listed > 0) & (listed < changed):
        mark(marks, section, ranks_at, rank_lows_at, changed, listed)
    if large > 0:
        mark(large_marks, section, large_ranks_at, large_lows_at, listed, large)
    tl.debug_barrier()  # separates the marks from the reads of other threads


@triton.jit
def changes_at(
    section: tl.tensor,
    sections: tl.tuple,
    marks: tl.tensor,
    large_marks: tl.tensor,
    at: tl.tensor,
    bases: tl.tuple,
    is_bitmap: tl.tensor,
    elements: tl.tensor,
    changed: tl.tensor,
    listed: tl.tensor,
    m: tl.tensor,
    large: tl.tensor,
    width: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """Read the changes whose bits are among the TILE bits from `at` on of the positions.

    `bases` are how many changes, listed ones and large magnitudes lie in front. Returns, lane by
    lane: whether it is a change, its rank and position, whether it goes down, whether it is listed
    and large, its field in the magnitudes, and the magnitude, of which a large one has no field.
    """
    lows_at, signs_at, _, _, _, magnitudes_at, _, _, large_at, _ = sections
    rank_base, listed_base, large_base = bases
    bits = tl.where(is_bitmap, elements, high_bits(elements, changed))
    low = tl.where(is_bitmap, 0, low_bits(elements, changed))
    is_set, rank, position = positions(
        section, 0, lows_at, at, rank_base, bits, low, changed, is_bitmap
    )
    is_down = field(section, signs_at, rank, 1, is_set) > 0
    is_marked = field(marks, 0, rank, 1, is_set & (listed > 0) & (listed < changed)) > 0
    is_listed = is_set & (is_marked | (listed == changed))
    ones = is_listed.to(tl.int32)
    listed_rank = listed_base + tl.cumsum(ones, 0) - ones
    small = field(section, magnitudes_at, listed_rank, m, is_listed)
    larges = field(large_marks, 0, listed_rank, 1, is_listed & (large > 0))
    large_rank = large_base + tl.cumsum(larges, 0) - larges
    is_large = larges > 0
    magnitude = small + field(section, large_at, large_rank, width, is_large)
    return is_set, rank, position, is_down, is_listed, is_large, small, magnitude
