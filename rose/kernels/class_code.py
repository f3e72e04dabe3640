"""STRAT blocks inside a Triton program: what a class's part of the stream holds, and its counts.

Here a block's differences lie class by class, in the order of their positions within each: the
sections of a class are those of a GAP block of as many elements, without borders between them.
"""

import triton
import triton.language as tl

from rose.kernels.gap_code import bit_width, field, high_bits, low_bits, set_field

CLASSES = tl.constexpr(8)
STRAT = tl.constexpr(4)


@triton.jit
def of_class(c: tl.tensor, numbers: tl.tensor) -> tl.tensor:
    """Return one of (CLASSES,) numbers."""
    return tl.sum(tl.where(tl.arange(0, CLASSES) == c, numbers, 0), 0)


@triton.jit
def rule_of(widths: tl.tensor, all_mask: tl.tensor) -> tuple[tl.tensor, ...]:
    """Return, of each class, m and whether every size is listed, as 1 or 0."""
    lane = tl.arange(0, CLASSES)
    return ((widths >> (8 * lane)) & 0xFF).to(tl.int32), (all_mask >> lane) & 1


@triton.jit
def is_in_bitmap(members: tl.tensor, changed: tl.tensor) -> tl.tensor:
    """Say whether a bitmap has the positions of a class, which is shorter then."""
    return members < 4 * changed


@triton.jit
def position_bits(members: tl.tensor, changed: tl.tensor) -> tl.tensor:
    """Return the bits of the bitmap, or of the high section; `changed` is at least 1."""
    return tl.where(is_in_bitmap(members, changed), members, high_bits(members, changed))


@triton.jit
def position_low_bits(members: tl.tensor, changed: tl.tensor) -> tl.tensor:
    """Return the bits of a position that are stored plainly; `changed` is at least 1."""
    return tl.where(is_in_bitmap(members, changed), 0, low_bits(members, changed))


@triton.jit
def layout_of_class(
    start: tl.tensor,
    members: tl.tensor,
    changed: tl.tensor,
    listed: tl.tensor,
    m: tl.tensor,
    large: tl.tensor,
    is_all: tl.tensor,
    width: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """Return what `body_code.layout` does, for the sections of classes that begin at bit `start`.

    Of one class, or of all at once. A class without changes has no bits.
    """
    k, e, f = tl.maximum(changed, 1), tl.maximum(listed, 1), tl.maximum(large, 1)
    n = tl.maximum(members, 1)
    has_ranks = (listed > 0) & (is_all == 0)
    lows_at = start + tl.where(changed > 0, position_bits(n, k), 0)
    signs_at = lows_at + changed * position_low_bits(n, k)
    ranks_at = signs_at + changed
    rank_lows_at = ranks_at + tl.where(has_ranks, high_bits(k, e), 0)
    magnitudes_at = rank_lows_at + tl.where(has_ranks, listed * low_bits(k, e), 0)
    large_ranks_at = magnitudes_at + m * listed
    large_lows_at = large_ranks_at + tl.where(large > 0, high_bits(e, f), 0)
    large_at = large_lows_at + large * low_bits(e, f)
    return (
        lows_at,
        signs_at,
        ranks_at,
        ranks_at,
        rank_lows_at,
        magnitudes_at,
        large_ranks_at,
        large_lows_at,
        large_at,
        large_at + width * large,
    )


@triton.jit
def gamma_bits(number: tl.tensor) -> tl.tensor:
    """Return the bits of gamma(number + 1)."""
    return 2 * bit_width(number + 1) - 1


@triton.jit
def put_gamma(section: tl.tensor, at: tl.tensor, number: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """Write gamma(number + 1) into zeroed words, unless the mask is off; returns where it ends."""
    low = bit_width(number + 1) - 1
    rest = (number + 1) & ((1 << low) - 1)
    set_field(section, at + low, 0, low + 1, 1 | (rest << 1), mask)
    return at + tl.where(mask, 2 * low + 1, 0)


@triton.jit
def take_gamma(
    section: tl.tensor, at: tl.tensor, end: tl.tensor, mask: tl.tensor
) -> tuple[tl.tensor, ...]:
    """Read a number that `put_gamma` wrote before bit `end`, 0 without the mask, and where it ends.

    No number that is counted is above 2^16: what is none ends behind `end`.
    """
    seen = tl.minimum(tl.maximum(end - at, 0), 17)
    ahead = field(section, at, 0, seen, mask & (seen > 0))
    low = bit_width(ahead & -ahead) - 1
    is_there = mask & (ahead != 0) & (at + 2 * low < end)
    low = tl.maximum(low, 0)
    rest = field(section, at + low + 1, 0, low, is_there)
    number = tl.where(is_there, ((1 << low) | rest) - 1, 0)
    ends = tl.where(is_there, at + 2 * low + 1, end + 1)
    return number, tl.where(mask, ends, at)
