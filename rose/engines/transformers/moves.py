"""Moves of KV between two steps, so that whole slabs become empty."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

import torch
from transformers.generation.continuous_batching.cache_allocators.cache_allocator import (
    CacheAllocator,
)

from rose.memory import KVSpace


def move_blocks(
    space: KVSpace,
    rows: torch.Tensor,
    slabs: Sequence[int] | None,
    *,
    limit: int,
    settle: Callable[[], None],
) -> dict[int, int]:
    """Move blocks so that slabs become empty; nobody may read or write the space during the call.

    A slab under revocation that becomes empty is returned inside the call. Blocks of pinned slabs
    are not moved.

    Args:
        space: space of the blocks.
        rows: (blocks, bytes) uint8, row i is block i, on the device.
        slabs: slabs to empty, in this order, each wholly or not at all; None for the sparsest
            slabs, as far as the other slabs have room.
        limit: most blocks to move.
        settle: function that waits until the copy is complete, on an asynchronous device.

    Returns:
        The new id of each moved block.
    """
    from_ids, to_ids = space.allocator.plan_evacuation(slabs, limit)
    if not from_ids:
        return {}
    with ExitStack() as undo:
        # Until the copy is complete, the old places are valid.
        undo.callback(space.allocator.cancel_evacuation, from_ids, to_ids)
        sources = torch.tensor(from_ids, device=rows.device)
        rows.index_copy_(0, torch.tensor(to_ids, device=rows.device), rows.index_select(0, sources))
        settle()
        undo.pop_all()
    now_at = space.allocator.finish_evacuation(from_ids, to_ids)
    return {old: new for old, new in zip(from_ids, now_at, strict=True) if old != new}


def rename_pages(allocator: CacheAllocator, blocks: Mapping[int, int]) -> None:
    """Update an allocator's tables of pages and its prefixes after blocks have moved."""
    size = int(allocator.blocks_per_sector)

    def at(page: int) -> int:
        return blocks.get(page // size, page // size) * size + page % size

    for table in allocator.block_table.values():
        table[:] = map(at, table)
    ledger = allocator.ledger
    for name in ("shared_ref_counts", "block_to_hash", "cached_blocks"):
        known = getattr(ledger, name)
        setattr(ledger, name, {at(page): of for page, of in known.items()})
    if isinstance(ledger.hash_to_block, dict):  # Otherwise rose's allocator has updated this map.
        ledger.hash_to_block = {key: at(page) for key, page in ledger.hash_to_block.items()}
