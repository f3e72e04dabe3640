"""Turn a delta into the positions it changes and the values they get."""

from typing import Any

import torch

from rose.errors import InvalidArgument
from rose.kernels import operands
from rose.kernels.block_changes import Lists, change_blocks
from rose.kernels.blocks import UnpackedChanges


def topk_unpack(
    base: Any, entries: Any, offsets: Any, payload: Any, *, block_elements: int, capacity: int
) -> UnpackedChanges:
    """List what a delta changes in `base`, which stays as it is; nothing waits for the device.

    Args:
        base: elements of 8, 16 or 32 bits, aligned to their size, which the delta starts from; a
            box, see `rose.kernels.box`.
        entries: (blocks,) int64, the u64 of the table.
        offsets: (blocks,) int64, where each block's payload starts, in words; in any order.
        payload: int32 that holds u32 words.
        block_elements: 65,536 or 16,384, as it was packed.
        capacity: how many changes to have room for: the budget of a top-k delta.

    Raises:
        InvalidArgument: the tensors do not go together, or one is of another type.
    """
    bits = operands.bits_of("base", base)
    operands.check_words("entries", entries, torch.int64, bits)
    if capacity < 0:
        raise InvalidArgument(f"capacity {capacity} must not be negative")
    device = bits.device
    changed = (entries >> 4) & 0xFFFFF
    ends = changed.cumsum(0)
    lists = Lists(
        starts=ends - changed,
        positions=torch.full((capacity,), -1, dtype=torch.int64, device=device),
        values=torch.zeros(capacity, dtype=bits.dtype, device=device),
    )
    errors = change_blocks(bits, entries, offsets, payload, block_elements=block_elements, to=lists)
    return UnpackedChanges(lists.positions, lists.values, changed.sum(), errors)
