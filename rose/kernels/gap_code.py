"""Bit sections and Elias-Fano inside a Triton program: the sizes, the writer and the reader.

Words are int32 tensors that hold u32 bits, so every right shift goes through uint32. Positions,
ranks and bits of one block are below 2^30 and fit int32.
"""

import triton
import triton.language as tl

from rose.kernels.tile import TILE

EMPTY = tl.constexpr(0)
GAP = tl.constexpr(1)
RAW = tl.constexpr(2)
BITMAP = tl.constexpr(3)
DEFERRED = tl.constexpr(15)  # the arena was too small for this block: never part of a delta


@triton.jit
def words(bits: tl.tensor) -> tl.tensor:
    """Round bits up to words."""
    return (bits + 31) >> 5


@triton.jit
def bit_width(number: tl.tensor) -> tl.tensor:
    """Return how many bits a number from 0 to 2^31 - 1 has without its leading zeros.

    The exponent of fp32 says it, once no rounding can carry into the leading bit.
    """
    leading = (number & ~(number >> 1)).to(tl.float32)
    return tl.maximum((leading.to(tl.int32, bitcast=True) >> 23) - 126, 0)


@triton.jit
def low_bits(universe: tl.tensor, count: tl.tensor) -> tl.tensor:
    """floor(log2(floor(universe / count))); 0 where count is more than the universe."""
    return bit_width((universe // count) | 1) - 1


@triton.jit
def high_bits(universe: tl.tensor, count: tl.tensor) -> tl.tensor:
    """Return the bits of the high section of `count` positions below `universe`."""
    return count + ((universe - 1) >> low_bits(universe, count))


@triton.jit
def elias_fano_words(universe: tl.tensor, count: tl.tensor) -> tl.tensor:
    """Return the words of both sections; `count` is at least 1."""
    return words(high_bits(universe, count)) + words(count * low_bits(universe, count))


@triton.jit
def set_field(
    section: tl.tensor,
    start: tl.tensor,
    index: tl.tensor,
    width: tl.tensor,
    value: tl.tensor,
    mask: tl.tensor,
) -> None:
    """Write fields of `width` <= 32 bits into zeroed words, the first of which is at `start`.

    Several lanes may own bits of one word, so they are OR-ed in by atomics. The CUDA kernel builds
    the words in shared memory instead, which is faster.
    """
    bit = index * width
    shift = (bit & 31).to(tl.uint32)
    bits = value.to(tl.uint32)
    word = section + (start + (bit >> 5))
    tl.atomic_or(word, (bits << shift).to(tl.int32), mask=mask & (width > 0), sem="relaxed")
    # In two shifts, because a shift by 32 is undefined.
    rest = ((bits >> 1) >> (31 - shift)).to(tl.int32)
    tl.atomic_or(word + 1, rest, mask=mask & ((bit & 31) + width > 32), sem="relaxed")


@triton.jit
def field(
    section: tl.tensor, start: tl.tensor, index: tl.tensor, width: tl.tensor, mask: tl.tensor
) -> tl.tensor:
    """Read fields of `width` <= 32 bits, the first of which is at `start`; 0 without the mask.

    Where a part starts is a number of words beside the block's pointer here and everywhere: one
    pointer for each part would take two registers more.
    """
    bit = index * width
    shift = (bit & 31).to(tl.uint32)
    word = section + (start + (bit >> 5))
    # From the second-level cache: marks were OR-ed in there, below this multiprocessor's own.
    low = tl.load(word, mask=mask & (width > 0), other=0, cache_modifier=".cg").to(tl.uint32)
    is_split = mask & ((bit & 31) + width > 32)
    high = tl.load(word + 1, mask=is_split, other=0, cache_modifier=".cg").to(tl.uint32)
    bits = (low >> shift) | ((high << 1) << (31 - shift))
    # 2^width - 1, without a shift by 32.
    return bits.to(tl.int32) & ((2 << tl.maximum(width - 1, 0)) - 1)


@triton.jit
def clear(section: tl.tensor, size: tl.tensor) -> None:
    """Zero `size` words for `set_field`, for all threads of the program to see."""
    for at in range(0, size, TILE):
        word = at + tl.arange(0, TILE)
        tl.store(section + word, tl.zeros((TILE,), tl.int32), mask=word < size)
    tl.debug_barrier()  # separates the zeros from the atomics of other threads


@triton.jit
def set_position(
    section: tl.tensor,
    high_at: tl.tensor,
    lows_at: tl.tensor,
    rank: tl.tensor,
    position: tl.tensor,
    low: tl.tensor,
    mask: tl.tensor,
) -> None:
    """Write the `rank`-th positions of an Elias-Fano section whose split is `low`."""
    ones = tl.full(rank.shape, 1, tl.int32)
    set_field(section, high_at, (position >> low) + rank, 1, ones, mask)
    set_field(section, lows_at, rank, low, position & ((1 << low) - 1), mask)


@triton.jit
def positions(
    section: tl.tensor,
    high_at: tl.tensor,
    lows_at: tl.tensor,
    at: tl.tensor,
    before: tl.tensor,
    bits: tl.tensor,
    low: tl.tensor,
    count: tl.tensor,
    is_bitmap: tl.tensor,
) -> tuple[tl.tensor, ...]:
    """Decode the positions whose bits are among the TILE bits from `at` on.

    They are an Elias-Fano high section of `bits` bits whose split is `low`, or a bitmap, of which
    `low` is 0; `before` positions lie in front. Returns, lane by lane: whether its bit is
    set, the rank of its position, and its position. Nothing is read outside the sections, whatever
    they hold.
    """
    bit = at + tl.arange(0, TILE)
    is_set = field(section, high_at, bit, 1, bit < 32 * words(bits))
    rank = before + tl.cumsum(is_set, 0) - is_set
    is_there = is_set > 0
    top = bit - tl.where(is_bitmap, 0, rank)
    lows = field(section, lows_at, rank, low, is_there & (rank < count))
    return is_there, rank, (top << low) | lows
