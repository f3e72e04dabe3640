"""Loans that a borrower maps one by one: `isolation="mapped"`.

Serving maps the whole pool permanently. A borrower maps a slab when it is lent, finds zeros in it,
and unmaps it lazily after its return. So a stray access of the borrower faults instead of reaching
another tenant's data, and a revocation costs serving nothing more.

The borrower's own process removes the mapping. It cannot reach slabs that it was never lent,
whatever code it runs; but only well-behaved code gives up slabs that were lent once.
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
