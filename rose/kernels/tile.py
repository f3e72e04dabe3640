"""The tile that one Triton program processes, and the bit fields that it reads and writes.

Words are int32 tensors with u32 bits, so every right shift goes through uint32. Positions, ranks
and bit offsets within a block are below 2^30 and fit int32.
"""

from collections.abc import Iterator
from typing import Any, Final

import torch
import triton
import triton.language as tl

TILE = tl.constexpr(1024)
NUM_WARPS: Final = 8
LAUNCH: Final[dict[str, Any]] = {"num_warps": NUM_WARPS}
# Elements per pass: whole blocks of either block size. A pass takes some 100 MB of GPU memory,
# whatever the size of the tensors.
PART_ELEMENTS: Final = 1 << 22


def row_of(tensor: Any) -> Any:
    """Return the elements as a row: the same memory, or a copy if the tensor is strided."""
    return tensor.contiguous().view(-1)


def ages_of(ages: Any) -> Any:
    """Return ages, if any, as a row of uint8."""
    return None if ages is None else row_of(ages).view(torch.uint8)


def parts_of(count: int) -> Iterator[slice]:
    """Cut a row into the parts that are processed one after the other."""
    for at in range(0, count, PART_ELEMENTS):
        yield slice(at, min(at + PART_ELEMENTS, count))


@triton.jit
def load_bits(places: tl.tensor, mask: tl.tensor, width: tl.constexpr) -> tl.tensor:
    """Load elements as int32 with zeros above their bits; 0 where the mask is off."""
    bits = tl.load(places, mask=mask, other=0).to(tl.int32)
    if width < 32:
        bits = bits & ((1 << width) - 1)
    return bits


@triton.jit
def store_bits(places: tl.tensor, bits: tl.tensor, mask: tl.tensor, width: tl.constexpr) -> None:
    """Store the low bits of int32 as elements."""
    if width == 8:
        bits = bits.to(tl.int8)
    if width == 16:
        bits = bits.to(tl.int16)
    tl.store(places, bits, mask=mask)


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
