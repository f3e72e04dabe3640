"""The source of memory for transformers' cache: the blocks of a lane."""

from collections.abc import Sequence

from transformers.generation.continuous_batching.cache_allocators.cache_pool import (
    CachePool,
    RegularTrees,
)

from rose.engines.lane import KVLane
from rose.errors import OutOfMemory


class SlabPool(CachePool):  # type: ignore[misc]  # transformers ships no types
    """A `CachePool` whose free sectors are the free blocks of rose's allocator.

    All of transformers' allocators share the blocks.

    Args:
        lane: lane of the tenant.
        num_allocators: number of transformers' allocators, one per type of attention.
    """

    def __init__(self, lane: KVLane, num_allocators: int) -> None:
        self.lane = lane
        super().__init__(0, num_allocators)

    def reset(self) -> None:
        """Return every free block to rose; callers free all requests first."""
        if hasattr(self, "_free_blocks"):
            self.try_to_free_sectors()
        self._free_blocks = [RegularTrees(count) for count in self.blocks_per_sector]

    @property
    def free_sectors(self) -> range:
        """A range as long as the number of free blocks, because stock code takes the length."""
        return range(self.num_free_sectors)

    @property
    def num_free_sectors(self) -> int:
        """Number of blocks that can be taken, however they are divided among the allocators."""
        return int(self.lane.kv.allocator.free_blocks)

    def take(self, blocks: Sequence[int]) -> bool:
        """Take blocks for each allocator; if too few are free, return False and take none."""
        taken = [self._take(index, count) for index, count in enumerate(blocks) if count > 0]
        if all(taken):
            return True
        self.try_to_free_sectors()
        return False

    def _take(self, index: int, count: int) -> bool:
        """Take blocks from the fullest slabs; return False if too few are free.

        Serving's lane keeps enough blocks free, even if a batch takes its blocks long before or
        after a step.
        """
        blocks = self.lane.alloc(count)
        for block in blocks or ():
            self._free_blocks[index].add_tree(block)
        return blocks is not None

    def allocate_sector(self, index: int) -> None:
        """Take one block for the allocator `index`, after stock code has counted a free one.

        Raises:
            OutOfMemory: no block is free, because stock code miscounted, or because serving took
                slabs after the count.
        """
        if not self._take(index, 1):
            raise OutOfMemory(
                "the cache of transformers counted a free block, but the lane has no free block"
            )

    def free_blocks(self, index: int, block_ids: list[int]) -> None:
        """Mark pages as free, and return blocks without a live page at once.

        Therefore a slab under revocation that becomes empty is returned inside this call. And if
        the allocator keeps a block as a prefix, no page of that block is written again.
        """
        super().free_blocks(index, block_ids)
        self._give(index)

    def try_to_free_sectors(self) -> None:
        """Return blocks without a live page."""
        for index in range(self.num_allocators):
            self._give(index)

    def _give(self, index: int) -> None:
        roots = self._free_blocks[index].delete_full_trees()
        if roots:
            self.lane.kv.allocator.free(roots)

    def moved(self, index: int, blocks: dict[int, int]) -> None:
        """Update the ids of an allocator's partly free blocks after a move."""
        free = self._free_blocks[index]
        size = free.elems_per_tree
        free.trees = {
            blocks.get(root, root): [blocks.get(root, root) * size + leaf % size for leaf in leaves]
            for root, leaves in free.trees.items()
        }
