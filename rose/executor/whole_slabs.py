"""Slabs of a borrower that are held whole: for what is no KV but comes and goes with its slabs."""

from collections.abc import Collection, Sequence
from typing import Final

from rose.events import Reason, Refusal
from rose.executor.rollout import RolloutLane
from rose.memory import find_runs

# While slabs are looked for, others can leave: then once more with what is there.
_TRIES: Final = 4


class WholeSlabs:
    """Holds a slab by holding every block of it, so that no sequence gets one.

    A slab that is held this way is on loan like any other: under a certificate, a TTL and
    revocation, which waits until `give` has freed its blocks and no pin is left. For one thread.
    """

    def __init__(self, lane: RolloutLane) -> None:
        """Hold none."""
        self._lane = lane
        self._allocator = lane.kv.allocator
        self._blocks: dict[int, list[int]] = {}  # by slab

    @property
    def slabs(self) -> frozenset[int]:
        """Those that are held."""
        return frozenset(self._blocks)

    def take(self, lengths: Sequence[int]) -> list[range] | Refusal:
        """Hold a run of neighbouring slabs for each of `lengths`; grows the loan if need be.

        Returns:
            The runs in the order of `lengths`; all of them, or none and why.
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
            # What there is falls short, or lies apart: then a longer loan may bring neighbours.
            missing = sum(lengths) - len(whole)
            refusal = self._grow(max(missing, *lengths))
            if refusal is not None:
                return refusal if missing > 0 else Refusal(Reason.FRAGMENTED)
        return Refusal(Reason.FRAGMENTED)

    def _grow(self, slabs: int) -> Refusal | None:
        blocks = slabs * self._lane.kv.blocks_per_slab
        return self._lane.grow(self._allocator.free_blocks + blocks)

    def _take_free(self) -> dict[int, list[int]]:
        """Take every block of every slab that is free as a whole, by slab."""
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
        """Free all blocks of `slabs`; what is revoked and pinned by nobody leaves in this call."""
        for slab in slabs:
            self._allocator.free(self._blocks.pop(slab))
