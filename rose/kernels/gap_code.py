"""Bit fields and sets of positions inside a Triton program: writer and reader.

Words are int32 tensors with u32 bits, so every right shift goes through uint32. Positions, ranks
and bit offsets within a block are below 2^30 and fit int32.
"""

import triton
import triton.language as tl

from rose.kernels.tile import TILE


@triton.jit
def set_field(
    words: tl.tensor, index: tl.tensor, width: tl.tensor, value: tl.tensor, mask: tl.tensor
) -> None:
    """Write fields of `width` <= 32 bits into zeroed words.

    Several lanes may own bits of one word, so each field is OR-ed atomically.
    """
    bit = index * width
    shift = (bit & 31).to(tl.uint32)
    bits = value.to(tl.uint32)
    word = words + (bit >> 5)
    tl.atomic_or(word, (bits << shift).to(tl.int32), mask=mask & (width > 0), sem="relaxed")
    # Two shifts, because a shift by 32 is undefined.
    rest = ((bits >> 1) >> (31 - shift)).to(tl.int32)
    tl.atomic_or(word + 1, rest, mask=mask & ((bit & 31) + width > 32), sem="relaxed")


@triton.jit
def field(words: tl.tensor, index: tl.tensor, width: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """Read fields of `width` <= 32 bits; 0 where the mask is off."""
    bit = index * width
    shift = (bit & 31).to(tl.uint32)
    word = words + (bit >> 5)
    low = tl.load(word, mask=mask & (width > 0), other=0).to(tl.uint32)
    high = tl.load(word + 1, mask=mask & ((bit & 31) + width > 32), other=0).to(tl.uint32)
    bits = (low >> shift) | ((high << 1) << (31 - shift))
    # 2^width - 1, without a shift by 32.
    return bits.to(tl.int32) & ((2 << tl.maximum(width - 1, 0)) - 1)


@triton.jit
def set_positions(
    section: tl.tensor,
    place: tl.tuple,
    rank: tl.tensor,
    position: tl.tensor,
    mask: tl.tensor,
) -> None:
    """Write each lane's `position` as element number `rank` of a set.

    `place` has four numbers: first word of the high section, first word of the low section, number
    of low bits of a position, and the factor of `rank` in the index of a high bit. The factor is 1
    for an Elias-Fano set; a bitmap has 0 for the last two.
    """
    highs_at, lows_at, low, step = place
    set_field(section + highs_at, (position >> low) + rank * step, 1, mask.to(tl.int32), mask)
    set_field(section + lows_at, rank, low, position & ((1 << low) - 1), mask)


@triton.jit
def bits_of_set(place: tl.tuple) -> tl.tensor:
    """Return the size in bits of the high section or the bitmap, rounded up to whole words."""
    return 32 * (place[1] - place[0])


@triton.jit
def positions(
    section: tl.tensor, place: tl.tuple, at: tl.tensor, found: tl.tensor
) -> tuple[tl.tensor, ...]:
    """Read the positions in the TILE bits from `at` on; `found` positions come before them.

    Returns for each lane whether there is a position, the rank of the position, and the position;
    then the number of positions found so far.
    """
    highs_at, lows_at, low, step = place
    bit = at + tl.arange(0, TILE)
    is_set = field(section + highs_at, bit, 1, bit < bits_of_set(place))
    is_there = is_set > 0
    rank = found + tl.cumsum(is_set, 0) - is_set
    low_part = field(section + lows_at, rank, low, is_there)
    position = ((bit - rank * step) << low) | low_part
    return is_there, rank, position, found + tl.sum(is_set, 0)


@triton.jit
def four(table: tl.tensor, block: tl.tensor, group: tl.constexpr) -> tuple[tl.tensor, ...]:
    """Load four numbers of a block's row in the table of `rose.kernels.block_plan`."""
    at = table + block * 24 + 4 * group
    return tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3)
