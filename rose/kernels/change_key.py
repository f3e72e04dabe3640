"""Sizes of bf16 changes, as keys from 0 to 32,767 for top-k."""

from typing import Any, Final

import torch
import triton
import triton.language as tl

from rose.kernels.tile import LAUNCH, TILE, load_bits

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


def change_keys(new: Any, shadow: Any, ages: Any, age_limit: int) -> Any:
    """Return the key of each element of a row, without waiting for the device.

    Args:
        new: (count,) int16, bits of bf16.
        shadow: (count,) int16, bits of the previous version.
        ages: (count,) uint8, number of consecutive packs that did not send an element's change;
            None to ignore ages.
        age_limit: age at which a change is due.

    Returns:
        (count,) int32: -1 for no change, and `DUE` for a due change.
    """
    keys = torch.empty(new.shape, dtype=torch.int32, device=new.device)
    if count := new.numel():
        with torch.cuda.device_of(new):
            change_keys_kernel[(-(-count // TILE.value),)](
                new, shadow, ages, age_limit, keys, count, **LAUNCH
            )
    return keys
