"""Loans that a borrower maps one by one: `isolation="mapped"`.

Serving maps the whole pool permanently. A borrower maps each slab when it is lent, finds it zeroed,
and unmaps it lazily after its return. So a stray access of the borrower faults instead of reaching
another tenant's data, and a revocation takes serving no more time than with `isolation="shared"`.

The borrower's own process removes the mapping. Whatever code runs there, it cannot reach slabs that
it was never lent. But a slab that was lent once stays reachable until that code unmaps it.
"""

import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Final, Literal, TypeAlias, get_args

from rose._core import Arbiter
from rose.closing import Closing
from rose.errors import InvalidArgument

Isolation: TypeAlias = Literal["shared", "mapped"]
ISOLATIONS: Final[tuple[str, ...]] = get_args(Isolation)
# The kernel's limit for one message. A pool of 140 GiB in objects of 1 GiB needs 140.
DESCRIPTORS_MAX: Final = 253


def check_isolation(isolation: str) -> None:
    """Check that `isolation` is one of `ISOLATIONS`.

    Raises:
        InvalidArgument: it is not.
    """
    if isolation not in ISOLATIONS:
        raise InvalidArgument(
            f"isolation must be '{ISOLATIONS[0]}' or '{ISOLATIONS[1]}', got '{isolation}'"
        )


class LentSlabs(Closing):
    """Descriptors of single slabs, closed when the `with` block ends.

    Args:
        fds: slab id → file descriptor in this process; owned by this object.
    """

    def __init__(self, fds: Mapping[int, int]) -> None:
        self.fds = dict(fds)

    def close(self) -> None:
        """Close all descriptors; existing mappings stay."""
        while self.fds:
            os.close(self.fds.popitem()[1])


class MappedLoans:
    """Serving's side of mapped loans: a lent slab is zeroed before the borrower can map it.

    If serving reclaims a slab that is being zeroed, serving waits for the end of that scrub, so the
    zeros never overwrite its new data. If a scrub times out, the slab is quarantined, because the
    device may still write to it.

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
        """Zero granted slabs, before the borrower uses any of their blocks.

        Returns:
            Descriptors of the zeroed slabs, except slabs that were revoked in the meantime.

        Raises:
            InvalidArgument: a slab is unknown, or the borrower may be using it.
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
