"""Where sectors of transformers' cache come from: the blocks of a lane."""

from bisect import bisect_right
from collections.abc import Sequence

from transformers.generation.continuous_batching.cache_allocators.cache_pool import (
    CachePool,
    RegularTrees,
)

from rose.engines.lane import KVLane
from rose.errors import OutOfMemory
from rose.executor import RolloutLane
from rose.memory import KVSpace


class SlabPool(CachePool):  # type: ignore[misc]  # transformers ships no types
    """A `CachePool` whose free sectors are the free blocks of rose's allocators.

    Either all of transformers' allocators share the sectors of one geometry, or each has the lane's
    group of its own: then a sector is one of its blocks, and a slab goes from one to the other when
    it is empty.

    Args:
        lane: of the tenant.
        num_allocators: of transformers, one for each type of attention.
    """

    def __init__(self, lane: KVLane, num_allocators: int) -> None:
        self.lane = lane
        self.spaces = spaces_of(lane)
        is_shared = len(self.spaces) == 1
        # By allocator, which of the spaces its sectors are in.
        self.places = [0] * num_allocators if is_shared else list(range(num_allocators))
        super().__init__(0, num_allocators)

    @property
    def space(self) -> KVSpace:
        """Where the sectors of the first allocator are."""
        return self.spaces[0]

    def reset(self) -> None:
        """Give every free sector back to rose; callers free all requests first."""
        if hasattr(self, "_free_blocks"):
            self.try_to_free_sectors()
        self._free_blocks = [RegularTrees(count) for count in self.blocks_per_sector]

    @property
    def free_sectors(self) -> range:
        """The number of free sectors, in the form stock code takes the length of."""
        return range(self.num_free_sectors)

    @property
    def num_free_sectors(self) -> int:
        """How many sectors can be had, whichever allocators ask for them."""
        free = min(int(space.allocator.free_blocks) for space in self.spaces)
        if not isinstance(self.lane, RolloutLane) or len(self.spaces) == 1:
            return free
        groups = self.lane.groups
        return (
            bisect_right(
                range(free + 1), 0, key=lambda each: groups.missing_slabs([each] * len(self.spaces))
            )
            - 1
        )

    def by_space(self, sectors: Sequence[int]) -> list[int]:
        """Return sums over the allocators that share a space, of one number for each allocator."""
        sums = [0] * len(self.spaces)
        for place, count in zip(self.places, sectors, strict=True):
            sums[place] += count
        return sums

    def ensure(self, sectors: Sequence[int]) -> bool:
        """Have so many sectors free at once for each allocator; asks for a loan if need be."""
        wanted = self.by_space(sectors)
        if len(wanted) > 1 and isinstance(self.lane, RolloutLane):
            return self.lane.ensure_groups(wanted)
        return self.lane.ensure(wanted[0])

    def take(self, sectors: Sequence[int]) -> bool:
        """Take so many sectors for each allocator; False, and none taken, when too few are left."""
        taken = [self._take(index, count) for index, count in enumerate(sectors) if count > 0]
        if all(taken):
            return True
        self.try_to_free_sectors()
        return False

    def _take(self, index: int, count: int) -> bool:
        """Take sectors, from the fullest slabs.

        By the lane: serving's lane sees to it that enough is left, also when a batch takes its
        blocks long before or after a step.
        """
        place = self.places[index]
        sectors = self.spaces[place].allocator.alloc(count) if place else self.lane.alloc(count)
        for sector in sectors or ():
            self._free_blocks[index].add_tree(sector)
        return sectors is not None

    def allocate_sector(self, index: int) -> None:
        """Take one sector for the allocator `index`, as stock code does where it has counted.

        Raises:
            OutOfMemory: it has not, or slabs have left since.
        """
        if not self._take(index, 1):
            raise OutOfMemory("a sector was asked for, and the lane has no block left")

    def free_blocks(self, index: int, block_ids: list[int]) -> None:
        """Mark blocks as free, and hand sectors without a live block back at once.

        An emptied slab on revocation leaves inside this call; and a block that the allocator keeps
        as a prefix is nobody's to write to.
        """
        super().free_blocks(index, block_ids)
        self._give(index)

    def try_to_free_sectors(self) -> None:
        """Hand sectors without a live block back."""
        for index in range(self.num_allocators):
            self._give(index)

    def _give(self, index: int) -> None:
        roots = self._free_blocks[index].delete_full_trees()
        if roots:
            self.spaces[self.places[index]].allocator.free(roots)

    def moved(self, index: int, sectors: dict[int, int]) -> None:
        """Rename the sectors of an allocator that are partly free: they lie elsewhere now."""
        trees = self._free_blocks[index]
        size = trees.elems_per_tree
        trees.trees = {
            sectors.get(root, root): [
                sectors.get(root, root) * size + leaf % size for leaf in leaves
            ]
            for root, leaves in trees.trees.items()
        }


def spaces_of(lane: KVLane) -> tuple[KVSpace, ...]:
    """Return the views of a lane, one for each attention group; serving's has one."""
    return lane.groups.spaces if isinstance(lane, RolloutLane) else (lane.kv,)
