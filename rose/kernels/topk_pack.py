"""Pack the largest changes only, to a budget of elements."""

from typing import Any

import torch
import triton
import triton.language as tl

from rose.errors import InvalidArgument
from rose.kernels import operands
from rose.kernels.blocks import PackedBlocks
from rose.kernels.change_key import KEYS, change_key
from rose.kernels.delta_pack import delta_pack
from rose.kernels.tile import LAUNCH, TILE, load_bits


@triton.jit(do_not_specialize=["count"])
def histogram_kernel(new: tl.tensor, shadow: tl.tensor, bins: tl.tensor, count: tl.int64) -> None:
    """One program per tile counts the keys of its changes.

    All programs add to one histogram; the CUDA kernel keeps one per thread block, which is faster.
    """
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    is_inside = at < count
    after = load_bits(new, at, is_inside)
    before = load_bits(shadow, at, is_inside)
    one = tl.full((TILE,), 1, tl.int64)
    tl.atomic_add(bins + change_key(after, before), one, mask=after != before, sem="relaxed")


def topk_threshold(new: Any, shadow: Any, *, budget: int) -> Any:
    """Find the smallest threshold >= 1 that at most `budget` changed elements reach.

    Args:
        new: contiguous bf16 elements, or their bits as 16-bit integers.
        shadow: the same number of the same.
        budget: elements that may be sent, >= 0.

    Returns:
        int32 scalar on the device; 32,768 when even the largest key has too many.

    Raises:
        InvalidArgument: the two do not match, or the budget is negative.
    """
    operands.check_twins(new, shadow)
    operands.check_keys(new)
    if budget < 0:
        raise InvalidArgument(f"budget {budget} must not be negative")
    new_bits = operands.bits_of("new", new)
    shadow_bits = operands.bits_of("shadow", shadow)
    count = new.numel()
    bins = torch.zeros(KEYS, dtype=torch.int64, device=new.device)
    if count:
        with operands.on_device_of(new):
            histogram_kernel[(-(-count // TILE.value),)](
                new_bits, shadow_bits, bins, count, **LAUNCH
            )
    # From the largest key to key 1: how many changes reach it. It never falls on that way, so the
    # keys that too many reach are those below the threshold.
    reach = bins.flip(0)[:-1].cumsum(0)
    return 1 + (reach > budget).sum(dtype=torch.int32)


def topk_pack(
    new: Any,
    shadow: Any,
    *,
    budget: int,
    block_elements: int = 65_536,
    first_index: int = 0,
    seed: int = 0,
    arena_words: int | None = None,
) -> PackedBlocks:
    """Pack at most `budget` changes, the largest ones, and move `shadow` by those only.

    What is not sent stays a difference between `new` and `shadow`, and is weighed again next time.
    Arguments and errors are those of `topk_threshold` and `delta_pack`.
    """
    return delta_pack(
        new,
        shadow,
        block_elements=block_elements,
        threshold=topk_threshold(new, shadow, budget=budget),
        first_index=first_index,
        seed=seed,
        arena_words=arena_words,
    )
