"""Pack the largest changes only, to a budget of elements."""

from typing import Any

import torch
import triton
import triton.language as tl

from rose.errors import InvalidArgument
from rose.kernels import operands
from rose.kernels.box import boxes_of
from rose.kernels.change_key import KEYS, change_key
from rose.kernels.tile import LAUNCH, TILE, load_bits, place

LARGEST = tl.constexpr(KEYS - 1)


@triton.jit(do_not_specialize=["age_limit", "count"])
def histogram_kernel(
    new: tl.tensor,
    shadow: tl.tensor,
    new_box: tl.tuple,
    shadow_box: tl.tuple,
    ages: tl.tensor,
    age_limit: tl.int32,
    bins: tl.tensor,
    count: tl.int64,
) -> None:
    """One program per tile counts the keys of its changes; what is due counts as the largest.

    All programs add to one histogram; the CUDA kernel keeps one per thread block, which is faster.
    """
    base = tl.program_id(0).to(tl.int64) * TILE
    lane = tl.arange(0, TILE)
    is_inside = base + lane < count
    after = load_bits(place(new, base, lane, new_box), is_inside, 16)
    before = load_bits(place(shadow, base, lane, shadow_box), is_inside, 16)
    key = change_key(after, before)
    if ages is not None:
        age = tl.load(ages + base + lane, mask=is_inside, other=0).to(tl.int32)
        key = tl.where(age >= age_limit, LARGEST, key)
    one = tl.full((TILE,), 1, tl.int64)
    tl.atomic_add(bins + key, one, mask=after != before, sem="relaxed")


def topk_threshold(
    new: Any, shadow: Any, *, budget: int, ages: Any = None, age_limit: int = operands.AGE_MAX
) -> Any:
    """Find the smallest threshold >= 1 that at most `budget` changed elements reach.

    Args:
        new: bf16 elements, or their bits as 16-bit integers; a box, see `rose.kernels.box`.
        shadow: the same number of the same.
        budget: elements that may be sent, >= 0; those that are due count, and are sent even so.
        ages: None, or as for `delta_pack`; they stay as they are.
        age_limit: as for `delta_pack`.

    Returns:
        int32 scalar on the device; 32,768 when even the largest key has too many.

    Raises:
        InvalidArgument: the two do not match, or the budget is negative.
    """
    operands.check_twins(new, shadow)
    operands.check_keys(new)
    if budget < 0:
        raise InvalidArgument(f"budget {budget} must not be negative")
    operands.check_ages(ages, age_limit, new)
    new_bits = operands.bits_of("new", new)
    shadow_bits = operands.bits_of("shadow", shadow)
    new_box, shadow_box = boxes_of(new=new_bits, shadow=shadow_bits)
    count = new.numel()
    bins = torch.zeros(KEYS, dtype=torch.int64, device=new.device)
    if count:
        with operands.on_device_of(new):
            histogram_kernel[(-(-count // TILE.value),)](
                new_bits,
                shadow_bits,
                new_box,
                shadow_box,
                ages,
                age_limit,
                bins,
                count,
                **LAUNCH,
            )
    # From the largest key to key 1: how many changes reach it. It never falls on that way, so the
    # keys that too many reach are those below the threshold.
    reach = bins.flip(0)[:-1].cumsum(0)
    return 1 + (reach > budget).sum(dtype=torch.int32)
