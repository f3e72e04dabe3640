"""One delta that does what two do, one after the other."""

from typing import Any

import torch

from rose.kernels import operands
from rose.kernels.blocks import PackedBlocks
from rose.kernels.delta_apply import delta_apply
from rose.kernels.delta_pack import delta_pack

Table = tuple[Any, Any, Any]  # entries, offsets and payload, as for `delta_apply`


def differences_of(like: Any, *deltas: Table, block_elements: int) -> tuple[Any, Any]:
    """Return what deltas make of zeros, one after the other, and the lowest bad block or -1."""
    differences = torch.zeros(like.numel(), dtype=like.dtype, device=like.device)
    errors = torch.full((), -1, dtype=torch.int32, device=like.device)
    for delta in deltas:
        bad = delta_apply(differences, *delta, block_elements=block_elements)
        errors = torch.where(errors < 0, bad, errors)
    return differences, errors


def delta_merge(
    first: Table, second: Table, *, like: Any, block_elements: int
) -> tuple[PackedBlocks, Any]:
    """Return the delta that does what `first` and then `second` do; nothing waits for the device.

    Differences are added, so it is the delta from zeros of what both make of zeros.

    Args:
        first: entries, offsets and payload, as for `delta_apply`.
        second: the same of the other, of the same blocks.
        like: a tensor of the shape and dtype that they are for; it is not read.
        block_elements: 65,536 or 16,384.

    Returns:
        The blocks, whose digest is that of the differences, and the lowest bad block of the first
        or else of the second, or -1. With a bad block they are no merger.

    Raises:
        InvalidArgument: the tensors do not go together, or one is of another type.
    """
    bits = operands.bits_of("like", like)
    differences, errors = differences_of(bits, first, second, block_elements=block_elements)
    return delta_pack(differences, None, block_elements=block_elements), errors
