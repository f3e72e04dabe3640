"""Loans that a borrower maps one by one: `isolation="mapped"`.

Serving maps the whole pool permanently. A borrower maps a slab when it is lent, finds zeros in it,
and unmaps it lazily after its return. So a stray access of the borrower faults instead of reaching
another tenant's data, and a revocation costs serving nothing more.

The borrower's own process removes the mapping. It cannot reach slabs that it was never lent,
whatever code it runs; but only well-behaved code gives up slabs that were lent once.
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
        fds: descriptor by slab, on this side of the socket; owned by this object.
    """

    def __init__(self, fds: Mapping[int, int]) -> None:
        self.fds = dict(fds)

    def close(self) -> None:
        """Close all descriptors; existing mappings stay."""
        while self.fds:
            os.close(self.fds.popitem()[1])


class MappedLoans:
    """Serving's side: a lent slab is zeroed before it can be mapped.

    A slab being zeroed has not left serving: if serving reclaims it, it waits for one scrub, and
    never finds its new data overwritten. After a scrub that timed out the slab is quarantined,
    because the device may still write.

    Args:
        arbiter: arbiter of a pool with one slab per memory object (`object_bytes_max=slab_bytes`).
        partition: partition of the borrower.

    Raises:
        InvalidArgument: the pool cannot share single slabs.
    """

    def __init__(self, arbiter: Arbiter, partition: int) -> None:
        os.close(arbiter.share_slab(0))
        self._arbiter = arbiter
        self._partition = partition

    def lend(self, slabs: Iterable[int]) -> LentSlabs:
        """Zero granted slabs, before the borrower uses any block of them.

        Returns:
            The slabs that are still the borrower's, without those revoked meanwhile.

        Raises:
            InvalidArgument: an unknown slab, or one that the borrower may be using.
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
    """The borrower's side: its own mapping of lent slabs, at the pool's distances.

    Thread rule: only the borrower's stepping thread, while none of its kernels runs.

    Args:
        slab_bytes: slab size of the pool.
        slab_count: number of lendable slabs of the pool.
        header_slabs: number of header slabs of the pool.
        header_index: index of the borrower's own header slab.
        header_fd: descriptor of that slab, owned by the caller.
        device: device of the pool's memory; None for host memory.

    Raises:
        InvalidArgument: the sizes are invalid, or the descriptor is of something else.
        OutOfMemory: the address range is too large.
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
        """Return a window on a pool of this process, for a borrower in it."""
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
        """Map lent slabs, before any block of them is used.

        Raises:
            RoseError: a slab could not be mapped; earlier ones are mapped.
        """
        for slab, fd in lent.fds.items():
            self.mapping.take(slab, fd=fd)

    def keep(self, held: Collection[int]) -> None:
        """Give up every slab that is not in `held`; a later `sweep` unmaps it.

        A slab being returned counts as held until it is back: it may have a block in use.
        """
        self.give(slab for slab in self.mapping.held if slab not in held)

    def give(self, slabs: Iterable[int]) -> None:
        """Give up slabs that are no longer the borrower's; a later `sweep` unmaps them.

        Raises:
            InvalidArgument: a slab is not mapped.
        """
        for slab in slabs:
            self.mapping.give(slab)

    def sweep(self, at_most: int) -> int:
        """Unmap up to `at_most` slabs that were given up; returns their number."""
        return self.mapping.sweep(at_most)
