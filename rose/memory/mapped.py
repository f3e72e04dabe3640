"""Loans that a borrower maps one by one: `isolation="mapped"`.

Serving maps the whole pool for good, as ever; a borrower maps a slab when it is lent one, finds
zeros in it, and unmaps it when it is back, at leisure. So a stray access of the borrower faults,
where it would have met another tenant's bytes, and taking back costs serving nothing more.

The mapping is taken away by the borrower's own process. What a borrower was never lent it cannot
reach, whatever code it runs; what it was lent once, only code that plays by the rules lets go of.
"""

import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Final, Literal, TypeAlias, get_args

from rose._core import Arbiter
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
