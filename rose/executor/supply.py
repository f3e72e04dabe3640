"""Serving's supply of memory, its demand, and the slabs that it takes and offers."""

import threading

from rose._core import (
    Arbiter,
    Demand,
    PartitionSnapshot,
    ServingState,
    Snapshot,
    SupplyWatch,
)
from rose.executor.collector import Collector
from rose.executor.revocation import Cause
from rose.executor.tenancy import Tenancy
from rose.memory import KVSpace
from rose.slo.policy import REVOKE_AHEAD_SLABS
from rose.units import ceil_div


class SupplyGuard:
    """Keeps serving's free blocks and the unowned slabs above its demand D(T).

    Serving calls `reclaim`, `foresee`, `recheck`, `load_changed`, `keep_surplus` and
    `offer_surplus`. The keeper calls `recheck` and `offer_idle`. Any thread may call the methods:
    `_lock` guards this object's own state, and is never held while rose waits for slabs or calls
    the borrower.

    While slabs are on loan the arbiter watches the supply: it refuses a grant that would leave less
    than the demand, and rings the keeper's bell when an allocation leaves less than the demand.
    """

    def __init__(
        self,
        *,
        arbiter: Arbiter,
        serving: int,
        kv: KVSpace,
        demand: Demand,
        state: ServingState,
        watch: SupplyWatch,
        collector: Collector,
    ) -> None:
        """Made by `Lender`; `serving` is the partition of `kv`."""
        self._arbiter = arbiter
        self._serving = serving
        self._kv = kv
        self._demand = demand
        self._state = state
        self._collector = collector
        self._watch = watch
        self._blocks_per_slab = demand.blocks_per_slab
        self.borrower: Tenancy | None = None
        self._lock = threading.Lock()  # Guards the field below.
        # True if serving has offered its surplus and has not requested slabs since.
        self._has_settled = False

    def lent(self, borrower: Tenancy) -> PartitionSnapshot:
        """Return the present state of the borrower's partition."""
        return self._arbiter.snapshot().partitions[borrower.partition]

    # ---- demand ---------------------------------------------------------------------------------

    @property
    def demand_blocks(self) -> int:
        """D(T) now: the number of blocks that serving could need before a loan is back."""
        return self._demand.blocks(running=self._state.pending)

    def slack_blocks(self, snapshot: Snapshot) -> int:
        """Return serving's free blocks plus those of unowned slabs, minus serving's demand."""
        free = snapshot.partitions[self._serving].free_blocks
        return int(free + snapshot.unowned * self._blocks_per_slab - self.demand_blocks)

    def close(self) -> None:
        """Watch the demand no longer, because lending has ended."""
        self._watch.end()

    def load_changed(self) -> None:
        """Update the demand after a request arrived or ended; wake the keeper if serving is short.

        The keeper starts the revocation, because a revocation may take up to T, and would delay the
        arriving request if it ran within this call.
        """
        if self.borrower is not None and self._watch.is_short():
            self._arbiter.ring()

    def foresee(self, blocks: int) -> None:
        """Begin to take slabs back if taking `blocks` blocks would leave serving short.

        Usually this costs one comparison in the core.
        """
        if self._arbiter.is_short(self._serving, taking=blocks):
            self.recheck(taking=blocks)

    def recheck(self, *, taking: int = 0) -> None:
        """Begin to take slabs back before serving's supply falls below its demand.

        Args:
            taking: number of blocks that serving is about to take.
        """
        if self.borrower is not None and self._watch.is_short(taking=taking):
            self.take_ahead(taking=taking)

    def take_ahead(self, *, taking: int = 0) -> None:
        """Begin to take slabs back; the arguments are those of `recheck`.

        Call this after `SupplyWatch.is_short`, not before: from then on, an allocation that leaves
        serving short wakes the keeper.
        """
        borrower = self.borrower
        if borrower is None:
            return
        snapshot = self._arbiter.snapshot()
        lent = snapshot.partitions[borrower.partition]
        coming = lent.in_revocation * self._blocks_per_slab
        missing = taking - self.slack_blocks(snapshot) - coming
        if missing > 0 and lent.held > lent.in_revocation:
            slabs = ceil_div(missing, self._blocks_per_slab) + REVOKE_AHEAD_SLABS
            self._collector.revoke(borrower, slabs, cause=Cause.PRESSURE, lent=lent)

    # ---- slabs ----------------------------------------------------------------------------------

    def reclaim(self, blocks: int) -> None:
        """Get `blocks` more free blocks for serving: unowned slabs first, then lent slabs.

        Waits at most T for pinned slabs, including slabs of earlier revocations.
        """
        borrower = self.borrower  # A borrower in another process may end at any time.
        wanted = self._kv.allocator.free_blocks + blocks
        if self._take(wanted) or borrower is None:
            return
        lent = self.lent(borrower)
        missing = wanted - self._kv.allocator.free_blocks
        slabs = ceil_div(missing, self._blocks_per_slab) - lent.in_revocation
        if slabs > 0 and lent.held > lent.in_revocation:
            self._collector.revoke(borrower, slabs, cause=Cause.PRESSURE, lent=lent)
        self._collector.wait(lambda: self._take(wanted))

    def _take(self, wanted: int) -> bool:
        """Take unowned slabs, up to `wanted` free blocks in total; return True if this suffices."""
        missing = wanted - self._kv.allocator.free_blocks
        if missing > 0:
            self._arbiter.take(self._serving, ceil_div(missing, self._blocks_per_slab))
        return bool(self._kv.allocator.free_blocks >= wanted)

    def keep_surplus(self) -> None:
        """Keep all of serving's slabs until `offer_surplus`: serving is about to use them."""
        with self._lock:
            self._has_settled = False

    def offer_surplus(self) -> None:
        """Make slabs that exceed serving's demand unowned, and notify the borrower.

        Slabs kept because of a recent burst of requests are offered by `offer_idle`, once the
        demand has fallen.
        """
        with self._lock:
            self._has_settled = True
        self._offer()

    def offer_idle(self) -> None:
        """Offer the surplus again if no request is live, since the demand falls after a burst.

        After `keep_surplus` nothing is offered.
        """
        if self._state.pending == 0:
            self._offer()

    def _offer(self) -> None:
        borrower = self.borrower
        with self._lock:  # Without the lock, slabs could be given away after `keep_surplus`.
            snapshot = self._arbiter.snapshot()
            own_free = snapshot.partitions[self._serving].free_blocks
            surplus = min(own_free, self.slack_blocks(snapshot)) // self._blocks_per_slab
            given = self._has_settled and surplus > 0
            given = given and self._arbiter.give_back(self._serving, surplus) > 0
        if given and borrower is not None:
            borrower.note_room()
