"""Apply a delta to weights in place, or take it back; a bad block changes nothing."""

from typing import Any

from rose.kernels import operands
from rose.kernels.block_changes import change_blocks


def delta_apply(
    weights: Any,
    entries: Any,
    offsets: Any,
    payload: Any,
    *,
    block_elements: int,
    undo: bool = False,
    blocks: range | None = None,
) -> Any:
    """Change `weights` by each sound block of a delta; nothing waits for the device.

    Which blocks are sound depends on the delta only, so `undo` takes back what was applied, also
    of a delta with bad blocks.

    Args:
        weights: elements of 8, 16 or 32 bits, aligned to their size, changed in place; a box, see
            `rose.kernels.box`.
        entries: (blocks,) int64, the u64 of the table.
        offsets: (blocks,) int64, where each block's payload starts, in words; in any order.
        payload: int32 that holds u32 words.
        block_elements: 65,536 or 16,384, as it was packed.
        undo: take the changes back.
        blocks: neighbours of which only those are looked at and changed; None for all.

    Returns:
        int32 scalar on the device: the lowest bad one of the blocks, or -1.

    Raises:
        InvalidArgument: the tensors do not go together, or one is of another type.
    """
    bits = operands.bits_of("weights", weights)
    return change_blocks(
        bits, entries, offsets, payload, block_elements=block_elements, undo=undo, blocks=blocks
    )
