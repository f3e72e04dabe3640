"""Decide what is lent: certify every grant, and take it back before serving could need it."""

import threading
from collections.abc import Callable, Sequence
from typing import Final

from rose._core import (
    Arbiter,
    CertificateLog,
    CertifiedAdmission,
    Clock,
    Demand,
    Grant,
    GrantRefusal,
    HostGate,
    PartitionSnapshot,
    RenewAnswer,
    ServingState,
    Snapshot,
)
from rose.events import Reason, Refusal
from rose.executor.borrower import Borrower
from rose.executor.cap import Cap
from rose.executor.collector import Collector
from rose.executor.revocation import Cause
from rose.memory import KVSpace
from rose.slo import Policy
from rose.slo.policy import REVOKE_AHEAD_SLABS
from rose.units import NS_PER_MS, ceil_div

_REASONS: Final = {
    GrantRefusal.POOL_EMPTY: Reason.POOL_EMPTY,
    GrantRefusal.OVER_LIMIT: Reason.OVER_LIMIT,
    GrantRefusal.AT_RISK: Reason.RESERVE_AT_RISK,
}
_LEASE_IS_OVER: Final = (RenewAnswer.OVER, RenewAnswer.STALE_EPOCH)


class Lender:
    """The memory policy of one device; the arbiter holds the books.

    Serving calls `reclaim`, `foresee`, `recheck`, `load_changed` and `offer_surplus`; the borrower
    `grow`, `renew` and `step_ended`; the keeper `tend`; the owner of the cap `lend_at_most`. Any
    thread: `_lock` guards this object's own state, and is never held while rose waits for slabs or
    calls the borrower.

    While slabs are on loan the arbiter watches serving's demand D(T): it refuses a grant that would
    leave less, and rings the keeper when an allocation leaves less.
    """

    takes_ranks = False  # A borrower in this process chooses slabs itself, in `on_revoke`.

    def __init__(
        self,
        *,
        arbiter: Arbiter,
        serving: int,
        serving_kv: KVSpace,
        gate: HostGate,
        state: ServingState,
        demand: Demand,
        log: CertificateLog,
        policy: Policy,
        clock: Clock,
    ) -> None:
        """Made by `CoServing`; `serving` is the partition of `serving_kv`."""
        self.arbiter = arbiter
        self._serving = serving
        self.kv = serving_kv
        self.gate = gate
        self.state = state
        self.demand = demand
        self.log = log
        self.policy = policy
        self.clock = clock
        self.collector = Collector(
            arbiter=arbiter, serving=serving, gate=gate, log=log, policy=policy, clock=clock
        )
        self._admission = CertifiedAdmission(serving, demand, log=log, serving=state)
        self._blocks_per_slab = demand.blocks_per_slab
        self._slab_count = arbiter.slab_count
        self._ttl_ns = int(policy.lease_ttl_ms * NS_PER_MS)
        self._borrower: Borrower | None = None
        # The borrower whose segments may still run, even after it is gone.
        self.newest: Borrower | None = None
        self._lock = threading.Lock()  # Guards the fields below.
        self._leases: list[Grant] = []
        self._renewed_ns = 0
        self.cap = Cap(self._slab_count, clock)
        self.is_closed = False

    def lend_to(self, borrower: Borrower) -> None:
        """Start lending to `borrower`."""
        self._borrower = self.newest = borrower
        self.load_changed()

    def forget_borrower(self) -> None:
        """Drop the borrower and all its loans; another one may follow."""
        self._borrower = None
        with self._lock:
            self._leases.clear()
        self.collector.settle()

    @property
    def lendable_slabs(self) -> int:
        """Slabs of the pool outside serving's reserve."""
        return self._slab_count - self.arbiter.snapshot().partitions[self._serving].reserve_slabs

    @property
    def lent_slabs(self) -> int:
        """Slabs on loan that are not being taken back."""
        borrower = self._borrower
        lent = None if borrower is None else self._lent(borrower)
        return 0 if lent is None else lent.held - lent.in_revocation

    def _lent(self, borrower: Borrower) -> PartitionSnapshot:
        return self.arbiter.snapshot().partitions[borrower.partition]

    # ---- serving's demand -----------------------------------------------------------------------

    @property
    def demand_blocks(self) -> int:
        """D(T) now: the blocks that serving could need before a loan is back."""
        return self.demand.blocks(running=self.state.pending)

    def _slack_blocks(self, snapshot: Snapshot) -> int:
        """Return serving's available blocks minus its demand; negative when short."""
        free = snapshot.partitions[self._serving].free_blocks
        return int(free + snapshot.unowned * self._blocks_per_slab - self.demand_blocks)

    def _is_short(self, taking: int = 0) -> bool:
        """Report the demand to the arbiter; True if taking `taking` blocks leaves less."""
        return self.arbiter.watch(
            self._serving,
            demand_blocks=0 if self.is_closed else self.demand_blocks,
            blocks_per_slab=self._blocks_per_slab,
            taking=taking,
        )

    def load_changed(self) -> None:
        """Update the demand after a request came or went; ring the keeper if serving is short.

        The keeper revokes, not this call: it would delay the arriving request, as a borrower may
        take up to T.
        """
        if self._borrower is not None and self._is_short():
            self.arbiter.ring()

    def foresee(self, blocks: int) -> None:
        """Begin to take slabs back if taking `blocks` blocks would leave serving short.

        Usually this costs one comparison in the core.
        """
        if self.arbiter.is_short(self._serving, taking=blocks):
            self.recheck(taking=blocks)

    def recheck(self, *, taking: int = 0) -> None:
        """Begin to take slabs back before serving's supply falls below its demand.

        Args:
            taking: blocks that serving is about to take.
        """
        borrower = self._borrower
        if borrower is None or not self._is_short(taking):
            return
        # Must follow the watch: from here on an allocation that falls short rings.
        snapshot = self.arbiter.snapshot()
        lent = snapshot.partitions[borrower.partition]
        coming = lent.in_revocation * self._blocks_per_slab
        missing = taking - self._slack_blocks(snapshot) - coming
        if missing > 0 and lent.held > lent.in_revocation:
            slabs = ceil_div(missing, self._blocks_per_slab) + REVOKE_AHEAD_SLABS
            self.collector.revoke(borrower, slabs, cause=Cause.PRESSURE, lent=lent)

    # ---- serving's memory -----------------------------------------------------------------------

    def reclaim(self, blocks: int) -> None:
        """Get serving `blocks` more free blocks: unowned slabs first, then from the borrower.

        Waits at most T for pinned slabs, including those of revocations under way.
        """
        borrower = self._borrower  # A borrower in another process may end at any time.
        wanted = self.kv.allocator.free_blocks + blocks
        if self._take(wanted) or borrower is None:
            return
        lent = self._lent(borrower)
        missing = wanted - self.kv.allocator.free_blocks
        slabs = ceil_div(missing, self._blocks_per_slab) - lent.in_revocation
        if slabs > 0 and lent.held > lent.in_revocation:
            self.collector.revoke(borrower, slabs, cause=Cause.PRESSURE, lent=lent)
        self.collector.wait(lambda: self._take(wanted))

    def _take(self, wanted: int) -> bool:
        """Take unowned slabs for `wanted` free blocks in total; True if serving has them."""
        missing = wanted - self.kv.allocator.free_blocks
        if missing > 0:
            self.arbiter.take(self._serving, ceil_div(missing, self._blocks_per_slab))
        return bool(self.kv.allocator.free_blocks >= wanted)

    def take_back(self, slabs: int) -> None:
        """Begin to take back up to `slabs` slabs, regardless of serving's demand."""
        borrower = self._borrower
        if borrower is not None:
            lent = self._lent(borrower)
            self.collector.revoke(borrower, slabs, cause=Cause.PRESSURE, lent=lent)

    def offer_surplus(self) -> None:
        """Make slabs that exceed serving's demand unowned, and notify the borrower."""
        snapshot = self.arbiter.snapshot()
        own_free = snapshot.partitions[self._serving].free_blocks
        surplus = min(own_free, self._slack_blocks(snapshot)) // self._blocks_per_slab
        borrower = self._borrower
        if surplus > 0 and self.arbiter.give_back(self._serving, surplus) and borrower:
            borrower.note_room()

    # ---- the cap --------------------------------------------------------------------------------

    def lend_at_most(self, slabs: int, *, ttl_ns: float) -> None:
        """Cap the loan at `slabs` for `ttl_ns` from now, and at 0 after that."""
        self._cap(lambda: self.cap.set(slabs, ttl_ns=ttl_ns))

    def limit(self, slabs: int) -> None:
        """Limit the loan to `slabs` besides any cap, until the next limit."""
        self._cap(lambda: self.cap.limit(slabs))

    def _cap(self, change: Callable[[], None]) -> None:
        with self._lock:
            before = self.cap.slabs
            change()
            after = self.cap.slabs
        borrower = self._borrower
        if after > before and borrower is not None and not self.is_closed:
            borrower.note_room()
        if after < before:
            self.arbiter.ring()  # The keeper takes back slabs over the cap.

    # ---- the borrower's side --------------------------------------------------------------------

    def grow(self, blocks: int) -> Grant | Refusal:
        """Lend the borrower slabs for up to `blocks` more blocks, under a certificate.

        The arbiter requests the certificate under its own lock, so its premises still hold when
        the slabs change owner.
        """
        wait_ms = self.retry_after_ms()
        with self._lock:  # Without it, a grant could follow the last revocation.
            borrower = self._borrower
            if borrower is None or self.is_closed:
                return Refusal(Reason.CLOSED)
            if wait_ms > 0:
                return Refusal(Reason.RESERVE_AT_RISK, retry_after_ms=wait_ms)
            answer = self.arbiter.grant(
                borrower.partition,
                min(ceil_div(blocks, borrower.blocks_per_slab), self._slab_count),
                ttl_ns=self._ttl_ns,
                held_max=self.cap.slabs,
                admission=self._admission,
            )
            if isinstance(answer, GrantRefusal):
                return Refusal(_REASONS[answer])
            self._leases.append(answer)
            return answer

    def retry_after_ms(self) -> float:
        """Return how long growth must wait after revocations and aborts, in milliseconds."""
        before_ns = self.collector.no_growth_before_ns
        return max(0.0, (before_ns - self.clock.now_ns()) / NS_PER_MS) if before_ns > 0 else 0.0

    def step_began(self) -> None:
        """Do nothing: serving's process keeps the pool mapped."""

    def step_ended(self) -> None:
        """Settle revocations that the end of the step completed."""
        self.collector.settle()

    def rank(self, slabs: Sequence[int]) -> None:
        """Do nothing: the borrower chooses slabs in `on_revoke`."""

    def renew(self) -> None:
        """Renew the borrower's leases for another TTL. Cheap when called often."""
        now_ns = self.clock.now_ns()
        if now_ns - self._renewed_ns < self._ttl_ns // 4:
            return
        self._renewed_ns = now_ns
        with self._lock:
            self._leases = [
                lease
                for lease in self._leases
                if self.arbiter.renew(
                    lease.lease_id, lease_epoch=lease.lease_epoch, ttl_ns=self._ttl_ns
                )
                not in _LEASE_IS_OVER
            ]

    # ---- the keeper's side ----------------------------------------------------------------------

    def tend(self) -> None:
        """Fence late slabs, revoke leases past their TTL, enforce the cap, and recheck the demand.

        A borrower in this process cannot be stuck outside a step, so an idle or paused one keeps
        its leases; within a step it renews them at its gates. A borrower in another process stamps
        its mailbox.
        """
        borrower = self._borrower
        if borrower is not None and borrower.is_alive():
            self.renew()
        self.collector.revoke_overdue(borrower)
        self.recheck()
        if borrower is not None:
            self._keep_to_cap(borrower)
            borrower.mind_late(self._lent(borrower).quarantined)

    def _keep_to_cap(self, borrower: Borrower) -> None:
        """Begin to take back slabs over the cap."""
        cap_slabs = self.cap.slabs
        if self.is_closed or cap_slabs >= self._slab_count:
            return
        lent = self._lent(borrower)
        over = lent.held - lent.in_revocation - cap_slabs
        if over > 0:
            self.collector.revoke(borrower, over, cause=Cause.CAPPED, lent=lent)

    def close(self) -> None:
        """Stop lending, and take all loans back by the deadline."""
        with self._lock:
            self.is_closed = True
        borrower = self._borrower
        if borrower is None:
            return
        lent = self._lent(borrower)
        try:
            for revocation in self.collector.under_way():
                borrower.revoke(revocation)  # Again, as the first call may have failed.
            rest = lent.held - lent.in_revocation
            if rest > 0:
                self.collector.revoke(borrower, rest, cause=Cause.CLOSING, lent=lent)
        finally:
            self.collector.wait(lambda: False)
