"""Decides what is lent: every grant certified, and taken back before serving could need it."""

import threading
from collections.abc import Sequence
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
    `grow`, `renew` and `step_ended`; the keeper `tend`; whoever decides how much is lent
    `lend_at_most`. Any thread: what is not the arbiter's is under `_lock`, which is never held
    while slabs are waited for or the borrower is called.

    While slabs are on loan the arbiter watches what serving could need, D(T): a grant that would
    leave less is refused in the arbiter, and an allocation that leaves less rings the keeper.
    """

    takes_ranks = False  # A borrower of this process is asked, and knows best at that moment.

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
        # Whose segments may run; it may be gone already.
        self.newest: Borrower | None = None
        self._lock = threading.Lock()  # Guards all below.
        self._leases: list[Grant] = []
        self._renewed_ns = 0
        self.cap = Cap(self._slab_count, clock)
        self.is_closed = False

    def lend_to(self, borrower: Borrower) -> None:
        """Begin to lend."""
        self._borrower = self.newest = borrower
        self.load_changed()

    def forget_borrower(self) -> None:
        """Note that the borrower is gone, and with it all its loans; another one may come."""
        self._borrower = None
        with self._lock:
            self._leases.clear()
        self.collector.settle()

    @property
    def lendable_slabs(self) -> int:
        """What serving's reserve leaves of the pool."""
        return self._slab_count - self.arbiter.snapshot().partitions[self._serving].reserve_slabs

    @property
    def lent_slabs(self) -> int:
        """Slabs on loan that are not being taken back."""
        borrower = self._borrower
        lent = None if borrower is None else self._lent(borrower)
        return 0 if lent is None else lent.held - lent.in_revocation

    def _lent(self, borrower: Borrower) -> PartitionSnapshot:
        return self.arbiter.snapshot().partitions[borrower.partition]

    # ---- what serving could need ----------------------------------------------------------------

    @property
    def demand_blocks(self) -> int:
        """D(T) now: what serving could need before a loan is back, in its blocks."""
        return self.demand.blocks(running=self.state.pending)

    def _slack_blocks(self, snapshot: Snapshot) -> int:
        """Return how many more blocks serving can have than it could need; negative when short."""
        free = snapshot.partitions[self._serving].free_blocks
        return int(free + snapshot.unowned * self._blocks_per_slab - self.demand_blocks)

    def _is_short(self, taking: int = 0) -> bool:
        """Tell the arbiter what serving could need; whether there will be less than that."""
        return self.arbiter.watch(
            self._serving,
            demand_blocks=0 if self.is_closed else self.demand_blocks,
            blocks_per_slab=self._blocks_per_slab,
            taking=taking,
        )

    def load_changed(self) -> None:
        """Note that serving has another number of requests; the keeper is rung if it is short.

        Not here: this is the way of an arriving request, and a borrower may take until T.
        """
        if self._borrower is not None and self._is_short():
            self.arbiter.ring()

    def foresee(self, blocks: int) -> None:
        """Begin to take slabs back if serving's taking `blocks` blocks now would leave it short.

        One comparison in the core, as long as it would not.
        """
        if self.arbiter.is_short(self._serving, taking=blocks):
            self.recheck(taking=blocks)

    def recheck(self, *, taking: int = 0) -> None:
        """Begin to take slabs back before serving's supply falls under what it could need.

        Args:
            taking: blocks that serving is about to take.
        """
        borrower = self._borrower
        if borrower is None or not self._is_short(taking):
            return
        # Behind the watch: an allocation from here on rings.
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

        Waits for pinned slabs, those of revocations under way included, at most T_revoke.
        """
        borrower = self._borrower  # One of another process may be forgotten at any time.
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
        """Take unowned slabs for `wanted` free blocks in all; True when serving has them."""
        missing = wanted - self.kv.allocator.free_blocks
        if missing > 0:
            self.arbiter.take(self._serving, ceil_div(missing, self._blocks_per_slab))
        return bool(self.kv.allocator.free_blocks >= wanted)

    def take_back(self, slabs: int) -> None:
        """Begin to take back up to `slabs` slabs, whatever serving needs."""
        borrower = self._borrower
        if borrower is not None:
            lent = self._lent(borrower)
            self.collector.revoke(borrower, slabs, cause=Cause.PRESSURE, lent=lent)

    def offer_surplus(self) -> None:
        """Give slabs that serving could not need soon back to nobody, and tell the borrower."""
        snapshot = self.arbiter.snapshot()
        own_free = snapshot.partitions[self._serving].free_blocks
        surplus = min(own_free, self._slack_blocks(snapshot)) // self._blocks_per_slab
        borrower = self._borrower
        if surplus > 0 and self.arbiter.give_back(self._serving, surplus) and borrower:
            borrower.note_room()

    # ---- the cap --------------------------------------------------------------------------------

    def lend_at_most(self, slabs: int, *, ttl_ns: float) -> None:
        """Have at most `slabs` on loan for `ttl_ns` from now, and nothing after that."""
        with self._lock:
            before = self.cap.slabs
            self.cap.set(slabs, ttl_ns=ttl_ns)
            after = self.cap.slabs
        borrower = self._borrower
        if after > before and borrower is not None and not self.is_closed:
            borrower.note_room()
        if after < before:
            self.arbiter.ring()  # The keeper takes back what is over it.

    # ---- the borrower's side --------------------------------------------------------------------

    def grow(self, blocks: int) -> Grant | Refusal:
        """Lend the borrower slabs for up to `blocks` more blocks, under a certificate.

        The arbiter asks for the certificate under its own lock: what it rests on is true when the
        slabs are handed out.
        """
        wait_ms = self.retry_after_ms()
        with self._lock:  # Or a grant could slip in behind the last revocation.
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
        """How long growth is held off, in milliseconds: after a revocation, and after aborts."""
        before_ns = self.collector.no_growth_before_ns
        return max(0.0, (before_ns - self.clock.now_ns()) / NS_PER_MS) if before_ns > 0 else 0.0

    def step_began(self) -> None:
        """Do nothing: what serving's process maps stays mapped."""

    def step_ended(self) -> None:
        """Note what a step gave back when it ended."""
        self.collector.settle()

    def rank(self, slabs: Sequence[int]) -> None:
        """Do nothing: the borrower is asked."""

    def renew(self) -> None:
        """Say that the borrower lives; its leases last another TTL. Cheap when called often."""
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
        """Mind the deadlines: late slabs are fenced, leases past their TTL revoked, caps kept to.

        And check again what serving could need: it was rung for, or the machine has changed.
        A borrower of this process that is in no step cannot be stuck in one: idle or paused, it
        keeps its leases. Within a step it must show at its gates that it lives. One of another
        process stamps its mailbox.
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
        """Begin to take back what is on loan over the cap."""
        cap_slabs = self.cap.slabs
        if self.is_closed or cap_slabs >= self._slab_count:
            return
        lent = self._lent(borrower)
        over = lent.held - lent.in_revocation - cap_slabs
        if over > 0:
            self.collector.revoke(borrower, over, cause=Cause.CAPPED, lent=lent)

    def close(self) -> None:
        """Lend no more, and take back all that is lent, by the deadline."""
        with self._lock:
            self.is_closed = True
        borrower = self._borrower
        if borrower is None:
            return
        lent = self._lent(borrower)
        try:
            for revocation in self.collector.under_way():
                borrower.revoke(revocation)  # Again: the first time something may have failed.
            rest = lent.held - lent.in_revocation
            if rest > 0:
                self.collector.revoke(borrower, rest, cause=Cause.CLOSING, lent=lent)
        finally:
            self.collector.wait(lambda: False)
