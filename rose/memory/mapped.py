"""Loans that a borrower maps one by one: `isolation="mapped"`.

Serving maps the whole pool for good, as ever; a borrower maps a slab when it is lent one, finds
zeros in it, and unmaps it when it is back, at leisure. So a stray access of the borrower faults,
where it would have met another tenant's bytes, and taking back costs serving nothing more.

The mapping is taken away by the borrower's own process. What a borrower was never lent it cannot
reach, whatever code it runs; what it was lent once, only code that plays by the rules lets go of.
"""

import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from typing import Final, Literal, TypeAlias, get_args

from typing_extensions import Self

from rose._core import Arbiter, CudaDevice, MappedWindow
from rose.closing import Closing

Isolation: TypeAlias = Literal["shared", "mapped"]
ISOLATIONS: Final[tuple[str, ...]] = get_args(Isolation)


class LentSlabs(Closing):
    """Descriptors of single slabs, closed when the `with` block ends.

    Args:
        fds: one for each slab, on this side of the socket; they are this object's from now on.
    """

    def __init__(self, fds: Mapping[int, int]) -> None:
        self.fds = dict(fds)

    def close(self) -> None:
        """Close all descriptors; what they were mapped through stays mapped."""
        while self.fds:
            os.close(self.fds.popitem()[1])


class MappedLoans:
    """Serving's side: what it lends is zeros, and only then can it be mapped.

    A slab that is being made zeros has not left serving's hands: serving that wants it back in the
    middle waits for one scrub, and never finds its new bytes overwritten. After a scrub that did
    not end in time that stays so, because the device may still write: the slab ends in quarantine.

    Args:
        arbiter: of a pool with memory objects of one slab each (`object_bytes_max=slab_bytes`).
        partition: the borrower's.

    Raises:
        InvalidArgument: the pool cannot share one slab alone.
    """

    def __init__(self, arbiter: Arbiter, partition: int) -> None:
        os.close(arbiter.share_slab(0))
        self._arbiter = arbiter
        self._partition = partition

    def lend(self, slabs: Iterable[int]) -> LentSlabs:
        """Scrub slabs that were granted, before the borrower uses any block of them.

        Returns:
            The slabs that were still the borrower's; one that was taken back meanwhile is left
            out.

        Raises:
            InvalidArgument: there is no such slab, or the borrower may be using it.
            DeadlineExceeded: the device did not write the zeros in time.
        """
        lent = LentSlabs({})
        with ExitStack() as undo:
            undo.callback(lent.close)
            for slab in slabs:
                lent.fds[slab] = self._arbiter.share_slab(slab)
                if not self._arbiter.clean(self._partition, slab):
                    os.close(lent.fds.pop(slab))
            undo.pop_all()
        return lent


class SlabWindow:
    """The borrower's side: its own mapping of the slabs it is lent, at the pool's distances.

    Thread rule: the borrower's stepping thread, and only while none of its kernels runs.

    Args:
        slab_bytes: as the pool's, like the two after it.
        slab_count: of the lendable slabs.
        header_slabs: of the pool.
        header_index: the borrower's own header slab.
        header_fd: a descriptor of it, which stays the caller's to close.
        device: whose memory the pool is; None for memory of the host.

    Raises:
        InvalidArgument: the shape is none, or the descriptor is of something else.
        OutOfMemory: there are not so many addresses.
    """

    def __init__(
        self,
        *,
        slab_bytes: int,
        slab_count: int,
        header_slabs: int,
        header_index: int,
        header_fd: int,
        device: CudaDevice | None = None,
    ) -> None:
        self.mapping = MappedWindow.create(
            slab_bytes=slab_bytes,
            slab_count=slab_count,
            header_slabs=header_slabs,
            device=device,
        )
        self.mapping.open_header(header_index, fd=header_fd)

    @classmethod
    def of(cls, arbiter: Arbiter, *, header_index: int, device: CudaDevice | None = None) -> Self:
        """Return a window on a pool of this process, for a borrower that lives here too."""
        fd = arbiter.share_header(header_index)
        try:
            return cls(
                slab_bytes=arbiter.slab_bytes,
                slab_count=arbiter.slab_count,
                header_slabs=arbiter.header_slabs,
                header_index=header_index,
                header_fd=fd,
                device=device,
            )
        finally:
            os.close(fd)

    def take(self, lent: LentSlabs) -> None:
        """Map what was lent, before any block of it is used.

        Raises:
            RoseError: a slab could not be mapped; those before it are.
        """
        for slab, fd in lent.fds.items():
            self.mapping.take(slab, fd=fd)

    def keep(self, held: Collection[int]) -> None:
        """Give up every slab that is not in `held`; a later `sweep` unmaps it.

        A slab on its way back is held until it is back: it may have a block in use.
        """
        self.give(slab for slab in self.mapping.held if slab not in held)

    def give(self, slabs: Iterable[int]) -> None:
        """Give these slabs up, which are not the borrower's any more; a later `sweep` unmaps them.

        Raises:
            InvalidArgument: one of them is not mapped.
        """
        for slab in slabs:
            self.mapping.give(slab)

    def sweep(self, at_most: int) -> int:
        """Unmap up to `at_most` slabs that were given up; returns how many."""
        return self.mapping.sweep(at_most)
