"""Whole slabs of a partition as memory for tensors: weights, activations."""

from collections.abc import Sequence

from rose._core import Arbiter, BlockAllocator, SlabHeap
from rose.errors import Unavailable


class TensorHeap:
    """A heap in slabs that stay the partition's for as long as it is open.

    They are pinned: a revocation waits for `close()` until its deadline and then fences the
    partition, so whoever opens a heap in slabs on loan closes it when told to give them back. The
    partition's allocator hands out blocks in them as before; the caller sees to it that it has none
    to hand out, by a partition of its own for tensors.

    Args:
        arbiter: of the pool.
        allocator: of the partition that holds the slabs.
        slabs: which; neighbours make one room, and a tensor lies in one.

    Raises:
        InvalidArgument: a slab is not the partition's.
    """

    def __init__(self, arbiter: Arbiter, allocator: BlockAllocator, slabs: Sequence[int]) -> None:
        self.core = SlabHeap.create(arbiter, slabs=slabs)
        self._allocator = allocator
        self._pin: int | None = allocator.pin_slabs(slabs)

    @property
    def is_open(self) -> bool:
        """Return whether the slabs are pinned."""
        return self._pin is not None

    def close(self) -> None:
        """Let go of the slabs; a second call changes nothing.

        Raises:
            Unavailable: tensors still lie there.
        """
        if self._pin is None:
            return
        if (used_bytes := self.core.used_bytes) > 0:
            raise Unavailable(f"{used_bytes} bytes of the heap are in use: drop the tensors first")
        pin, self._pin = self._pin, None
        self._allocator.unpin(pin)
