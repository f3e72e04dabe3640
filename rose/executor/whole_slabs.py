"""Whole slabs of a borrower, for data other than KV."""

from collections.abc import Collection, Sequence
from typing import Final

from rose.events import Reason, Refusal
from rose.executor.rollout import RolloutLane
from rose.memory import find_runs

# Largest number of searches for runs of slabs, since slabs can leave during a search.
_TRIES: Final = 4


class WholeSlabs:
    """Holds whole slabs by taking all their blocks, so that no sequence gets a block of them.

    Such a slab is on loan like any other, with a certificate and a TTL. Its revocation waits until
    `give` has freed the blocks and no pin is left. For one thread at a time.
    """

    def __init__(self, lane: RolloutLane) -> None:
        self._lane = lane
        self._allocator = lane.kv.allocator
        self._blocks: dict[int, list[int]] = {}  # slab → blocks

    @property
    def slabs(self) -> frozenset[int]:
        """Ids of the slabs held."""
        return frozenset(self._blocks)

    def take(self, lengths: Sequence[int]) -> list[range] | Refusal:
        """Take a run of adjacent slabs for each of `lengths`; grows the loan if necessary.

        Args:
            lengths: number of slabs of each run.

        Returns:
            Runs of slab ids in the order of `lengths`, or a refusal.
        """
        for _ in range(_TRIES):
            whole = self._take_free()
            runs = find_runs(lengths, whole)
            chosen = {slab for run in runs or () for slab in run}
            for slab in whole.keys() - chosen:
                self._allocator.free(whole[slab])
            if runs is not None:
                self._blocks.update((slab, whole[slab]) for slab in chosen)
                return runs
            # There are too few slabs, or too few adjacent slabs. A larger loan may bring more.
            missing = sum(lengths) - len(whole)
            refusal = self._grow(max(missing, *lengths))
            if refusal is not None:
                return refusal if missing > 0 else Refusal(Reason.FRAGMENTED)
        return Refusal(Reason.FRAGMENTED)

    def _grow(self, slabs: int) -> Refusal | None:
        blocks = slabs * self._lane.kv.blocks_per_slab
        return self._lane.grow(self._allocator.free_blocks + blocks)

    def _take_free(self) -> dict[int, list[int]]:
        """Take all blocks of entirely free slabs; return slab id → block ids."""
        blocks = self._allocator.alloc(self._allocator.free_blocks)
        by_slab: dict[int, list[int]] = {}
        for block in blocks or ():
            by_slab.setdefault(self._allocator.slab_of(block), []).append(block)
        parts = [
            slab for slab in by_slab if len(by_slab[slab]) < self._allocator.slab_blocks(slab)[1]
        ]
        for slab in parts:
            self._allocator.free(by_slab.pop(slab))
        return by_slab

    def give(self, slabs: Collection[int]) -> None:
        """Free all blocks of `slabs`. Revoked slabs without a pin change owner in this call."""
        for slab in slabs:
            self._allocator.free(self._blocks.pop(slab))
