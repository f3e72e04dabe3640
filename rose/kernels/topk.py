"""Top-k: the keys of bf16 changes, from 0 to 32,767 by size, their threshold, and their list."""

from collections.abc import Iterator
from typing import Any, Final

import torch
import triton
import triton.language as tl

from rose.kernels.delta_apply import differences_of
from rose.kernels.tile import LAUNCH, TILE, ages_of, load_bits, parts_of, row_of
from rose.units import ceil_div

# Key of a due change, whose age has reached the limit. This key is above all others: as a threshold
# it lets only due changes pass.
DUE: Final = 1 << 15
_DUE = tl.constexpr(DUE)


@triton.jit
def widened(bits: tl.tensor) -> tl.tensor:
    """Return bf16 bits as fp32, with subnormals as zeros.

    So it makes no difference whether the GPU flushes subnormals to zero.
    """
    is_subnormal = (bits & 0x7F80) == 0
    return (tl.where(is_subnormal, bits & 0x8000, bits) << 16).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["age_limit", "count"])
def change_keys_kernel(
    new: tl.tensor,
    shadow: tl.tensor,
    ages: tl.tensor,
    age_limit: tl.int32,
    keys: tl.tensor,
    count: tl.int64,
) -> None:
    """One program per tile writes the tile's keys: the upper halves of |new - shadow| in fp32.

    The subtraction is the only operation on floats. Subnormals and NaNs are recognised by their
    bits, before and after the subtraction.
    """
    lane = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    is_inside = lane < count
    after = load_bits(new + lane, is_inside, 16)
    before = load_bits(shadow + lane, is_inside, 16)
    size = (widened(after) - widened(before)).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    key = tl.where(size > 0x7F800000, 0x7FFF, size >> 16)
    key = tl.where((key & 0x7F80) == 0, 0, key)
    if ages is not None:
        age = tl.load(ages + lane, mask=is_inside, other=0).to(tl.int32)
        key = tl.where(age >= age_limit, _DUE, key)
    tl.store(keys + lane, tl.where(after != before, key, -1), mask=is_inside)


def change_keys(new: Any, shadow: Any, *, ages: Any, age_limit: int) -> Iterator[Any]:
    """Yield the keys of the elements part by part, without waiting for the device.

    Args:
        new: (count,) int16, bits of bf16.
        shadow: (count,) int16, bits of the previous version.
        ages: (count,) uint8, number of consecutive packs that did not send an element's change;
            None to ignore ages.
        age_limit: age at which a change is due.

    Yields:
        int32: -1 for no change, and `DUE` for a due change.
    """
    for part in parts_of(len(new)):
        keys = torch.empty(new[part].shape, dtype=torch.int32, device=new.device)
        aged = None if ages is None else ages[part]
        with torch.cuda.device_of(new):
            change_keys_kernel[(ceil_div(len(keys), TILE.value),)](
                new[part], shadow[part], aged, age_limit, keys, len(keys), **LAUNCH
            )
        yield keys


def topk_threshold(new: Any, shadow: Any, *, budget: int, ages: Any, age_limit: int) -> Any:
    """Return the smallest threshold >= 1 that at most `budget` changes reach, () int64.

    Does not wait for the device.

    Args:
        new: int16, bits of bf16.
        shadow: int16, bits of the previous version.
        budget: largest number of changes to send.
        ages: see `change_keys`; any shape.
        age_limit: age at which a change is due.
    """
    # One bin for unchanged elements, then one per key.
    bins = torch.zeros(DUE + 2, dtype=torch.int64, device=new.device)
    aged = ages_of(ages)
    for keys in change_keys(row_of(new), row_of(shadow), ages=aged, age_limit=age_limit):
        bins += torch.bincount(keys + 1, minlength=len(bins))
    # Number of changes that reach each key, from DUE - 1 down to 1. The number never falls on the
    # way, so the keys that too many changes reach are those below the threshold.
    reach = bins[2:].flip(0).cumsum(0)[1:]
    return 1 + (reach > budget).sum()


def topk_unpack(
    base: Any, entries: Any, offsets: Any, payload: Any, *, block_elements: int
) -> tuple[Any, Any]:
    """List positions and new bits of a delta's changes. Waits for the stream.

    Args:
        base: int8, int16 or int32; only read.
        entries: see `delta_apply.differences_of`.
        offsets: see `delta_apply.differences_of`.
        payload: see `delta_apply.differences_of`.
        block_elements: elements per block.

    Returns:
        (changed,) int64 positions, ascending; and (changed,) new bits of these elements.
    """
    row = row_of(base)
    positions, values = [row[:0].long()], [row[:0]]
    for part, change in differences_of(
        entries, offsets, payload, like=row, block_elements=block_elements
    ):
        places = change.nonzero()[:, 0]
        positions.append(places + part.start)
        values.append(row[part][places] + change[places])
    return torch.cat(positions), torch.cat(values)
