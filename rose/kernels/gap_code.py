"""Bit sections and Elias-Fano inside a Triton program: the sizes, the writer and the reader.

Words are int32 tensors that hold u32 bits, so every right shift goes through uint32. Positions,
ranks and bits of one block are below 2^21 and fit int32.
"""

import triton
import triton.language as tl

from rose.kernels.tile import TILE

EMPTY = tl.constexpr(0)
GAP = tl.constexpr(1)
RAW = tl.constexpr(2)
DEFERRED = tl.constexpr(15)  # the arena was too small for this block: never part of a delta


@triton.jit
def words(bits: tl.tensor) -> tl.tensor:
    """Round bits up to words."""
    return (bits + 31) >> 5


@triton.jit
def low_bits(universe: tl.tensor, count: tl.tensor) -> tl.tensor:
    """floor(log2(floor(universe / count))), in integers; universe is at most 2^16."""
    quotient = universe // count
    low = 0
    for bit in tl.static_range(1, 17):
        low += ((quotient >> bit) > 0).to(tl.int32)
    return low


@triton.jit
def high_words(universe: tl.tensor, count: tl.tensor) -> tl.tensor:
    """Return the words of the high section of `count` positions below `universe`."""
    return words(count + ((universe - 1) >> low_bits(universe, count)))


@triton.jit
def layout(elements: tl.tensor, changed: tl.tensor, exceptions: tl.tensor) -> tuple[tl.tensor, ...]:
    """Return where the sections after the high positions begin, in words, and where all ends.

    Low positions, signs, high ranks, low ranks, values, end. `changed` is at least 1.
    """
    ranked = tl.maximum(exceptions, 1)  # without exceptions the ranks take no words at all
    lows_at = high_words(elements, changed)
    signs_at = lows_at + words(changed * low_bits(elements, changed))
    ranks_at = signs_at + words(changed)
    rank_lows_at = ranks_at + tl.where(exceptions > 0, high_words(changed, ranked), 0)
    values_at = rank_lows_at + words(exceptions * low_bits(changed, ranked))
    return lows_at, signs_at, ranks_at, rank_lows_at, values_at, values_at + words(16 * exceptions)


@triton.jit
def set_field(
    section: tl.tensor, index: tl.tensor, width: tl.tensor, value: tl.tensor, mask: tl.tensor
) -> None:
    """Write fields of `width` <= 32 bits into zeroed words.

    Several lanes may own bits of one word, so they are OR-ed in by atomics. The CUDA kernel builds
    the words in shared memory instead, which is faster.
    """
    bit = index * width
    shift = (bit & 31).to(tl.uint32)
    bits = value.to(tl.uint32)
    word = section + (bit >> 5)
    tl.atomic_or(word, (bits << shift).to(tl.int32), mask=mask & (width > 0), sem="relaxed")
    # In two shifts, because a shift by 32 is undefined.
    rest = ((bits >> 1) >> (31 - shift)).to(tl.int32)
    tl.atomic_or(word + 1, rest, mask=mask & ((bit & 31) + width > 32), sem="relaxed")


@triton.jit
def field(section: tl.tensor, index: tl.tensor, width: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """Read fields of `width` <= 16 bits; 0 where the mask is off."""
    bit = index * width
    shift = (bit & 31).to(tl.uint32)
    word = section + (bit >> 5)
    # From the second-level cache: marks were OR-ed in there, below this multiprocessor's own.
    low = tl.load(word, mask=mask & (width > 0), other=0, cache_modifier=".cg").to(tl.uint32)
    is_split = mask & ((bit & 31) + width > 32)
    high = tl.load(word + 1, mask=is_split, other=0, cache_modifier=".cg").to(tl.uint32)
    bits = (low >> shift) | ((high << 1) << (31 - shift))
    return bits.to(tl.int32) & ((1 << width) - 1)


@triton.jit
def clear(section: tl.tensor, size: tl.tensor) -> None:
    """Zero `size` words for `set_field`, for all threads of the program to see."""
    for at in range(0, size, TILE):
        word = at + tl.arange(0, TILE)
        tl.store(section + word, tl.zeros((TILE,), tl.int32), mask=word < size)
    tl.debug_barrier()  # separates the zeros from the atomics of other threads


@triton.jit
def set_position(
    high: tl.tensor,
    lows: tl.tensor,
    rank: tl.tensor,
    position: tl.tensor,
    low: tl.tensor,
    mask: tl.tensor,
) -> None:
    """Write the `rank`-th positions of an Elias-Fano section whose split is `low`."""
    set_field(high, (position >> low) + rank, 1, tl.full(rank.shape, 1, tl.int32), mask)
    set_field(lows, rank, low, position & ((1 << low) - 1), mask)


@triton.jit
def positions(
    high: tl.tensor,
    lows: tl.tensor,
    at: tl.tensor,
    before: tl.tensor,
    universe: tl.tensor,
    count: tl.tensor,
) -> tuple[tl.tensor, ...]:
    """Decode the positions whose bits are among the TILE bits of the high section from `at` on.

    `before` of them lie in front. Returns, lane by lane: whether its bit is set, the rank of its
    position, and its position. Nothing is read outside the two sections, whatever they hold.
    """
    low = low_bits(universe, count)
    bit = at + tl.arange(0, TILE)
    is_inside = bit < 32 * high_words(universe, count)
    is_set = field(high, bit, 1, is_inside)
    rank = before + tl.cumsum(is_set, 0) - is_set
    is_there = is_set > 0
    return is_there, rank, ((bit - rank) << low) | field(lows, rank, low, is_there & (rank < count))
