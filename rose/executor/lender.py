"""Lend slabs under certificates, and take them back before serving could need them."""

import logging
import threading
from collections import deque
from collections.abc import Callable
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
    RenewAnswer,
    ServingState,
    SupplyWatch,
)
from rose.events import Reason, Refusal
from rose.executor.cap import Cap
from rose.executor.collector import Collector
from rose.executor.harm import Readmission
from rose.executor.revocation import Cause
from rose.executor.supply import SupplyGuard
from rose.executor.tenancy import Tenancy
from rose.memory import KVSpace
from rose.slo import Policy
from rose.units import NS_PER_MS, ceil_div

_REASONS: Final = {
    GrantRefusal.POOL_EMPTY: Reason.POOL_EMPTY,
    GrantRefusal.OVER_LIMIT: Reason.OVER_LIMIT,
    GrantRefusal.AT_RISK: Reason.RESERVE_AT_RISK,
}
_LOG: Final = logging.getLogger(__name__)
# Number of killed borrowers that are kept for reports.
_KILLS: Final = 16
_LEASE_IS_OVER: Final = (RenewAnswer.OVER, RenewAnswer.STALE_EPOCH)


class Lender:
    """The memory policy of one device; the arbiter records who owns which slab.

    Serving uses `supply`. The borrower calls `grow`. The keeper calls `tend`. The owner of the cap
    calls `lend_at_most`. Any thread may call the methods: `_lock` guards this object's own state,
    and is never held while rose waits for slabs or calls the borrower.
    """

    def __init__(
        self,
        *,
        arbiter: Arbiter,
        serving: int,
        serving_kv: KVSpace,
        gate: HostGate,
        state: ServingState,
        demand: Demand,
        watch: SupplyWatch,
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
        self.readmission = Readmission(clock)
        self.collector = Collector(
            arbiter=arbiter, serving=serving, gate=gate, log=log, policy=policy, clock=clock
        )
        self.supply = SupplyGuard(
            arbiter=arbiter,
            serving=serving,
            kv=serving_kv,
            demand=demand,
            state=state,
            watch=watch,
            collector=self.collector,
        )
        self._admission = CertifiedAdmission(serving, demand, log=log, serving=state)
        self._slab_count = arbiter.slab_count
        self._ttl_ns = int(policy.lease_ttl_ms * NS_PER_MS)
        # The newest borrower. Its segments may still run after it has disconnected.
        self.newest: Tenancy | None = None
        self._lock = threading.Lock()  # Guards the fields below.
        self._leases: list[Grant] = []
        self._renewed_ns = 0
        self.cap = Cap(self._slab_count, clock)
        self.kills: deque[str] = deque(maxlen=_KILLS)
        self.is_closed = False

    def lend_to(self, borrower: Tenancy) -> None:
        """Start lending to `borrower`."""
        self.supply.borrower = self.newest = borrower
        self.supply.load_changed()

    def forget_borrower(self) -> None:
        """Drop the borrower and all its loans, so that another borrower may follow."""
        self.supply.borrower = None
        with self._lock:
            self._leases.clear()

    @property
    def lendable_slabs(self) -> int:
        """Number of slabs of the pool outside serving's reserve."""
        return self._slab_count - self.arbiter.snapshot().partitions[self._serving].reserve_slabs

    @property
    def lent_slabs(self) -> int:
        """Number of slabs on loan, except slabs being taken back."""
        borrower = self.supply.borrower
        lent = None if borrower is None else self.supply.lent(borrower)
        return 0 if lent is None else lent.held - lent.in_revocation

    def note_kill(self, borrower: int, pid: int, why: str) -> None:
        """Log that a borrower was killed, and keep the sentence for reports.

        Args:
            borrower: partition of the borrower.
            pid: process id of the borrower.
            why: reason of the kill, as a clause.
        """
        sentence = f"the borrower, process {pid}, was killed: {why}"
        self.kills.append(sentence)
        self.log.append_evicted(borrower=borrower, pid=pid, reason=why)
        _LOG.warning("rose: %s", sentence)

    def take_back(self, slabs: int) -> None:
        """Begin to take back up to `slabs` slabs, regardless of serving's demand."""
        borrower = self.supply.borrower
        if borrower is not None:
            lent = self.supply.lent(borrower)
            self.collector.revoke(borrower, slabs, cause=Cause.PRESSURE, lent=lent)

    # ---- the cap --------------------------------------------------------------------------------

    def lend_at_most(self, slabs: int, *, ttl_ns: float) -> None:
        """Cap the loan at `slabs` for `ttl_ns` from now, and at 0 after that."""
        self._cap(lambda: self.cap.set(slabs, ttl_ns=ttl_ns))

    def limit(self, slabs: int) -> None:
        """Set the operator's limit to `slabs` slabs, which applies in addition to a cap."""
        self._cap(lambda: self.cap.limit(slabs))

    def _cap(self, change: Callable[[], None]) -> None:
        with self._lock:
            before = self.cap.slabs
            change()
            after = self.cap.slabs
        borrower = self.supply.borrower
        if after > before and borrower is not None and not self.is_closed:
            borrower.note_room()
        if after < before:
            self.arbiter.ring()  # The keeper takes back slabs over the cap.

    # ---- the borrower's side --------------------------------------------------------------------

    def grow(self, blocks: int) -> Grant | Refusal:
        """Lend the borrower slabs for up to `blocks` more blocks, under a certificate.

        The arbiter requests the certificate under its own lock, so the certificate's terms are
        still valid when the slabs change owner.
        """
        wait_ms = self.retry_after_ms()
        with self._lock:  # Without the lock, a grant could follow the revocations of `close`.
            borrower = self.supply.borrower
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
        """Return for how many more ms the loan must not grow, after revocations and aborts."""
        before_ns = self.collector.no_growth_before_ns
        return max(0.0, (before_ns - self.clock.now_ns()) / NS_PER_MS) if before_ns > 0 else 0.0

    def _renew(self) -> None:
        """Renew the borrower's leases for another TTL. Frequent calls are cheap."""
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
        """Fence overdue slabs, revoke old leases, enforce the cap, and recheck the demand.

        The leases of a live borrower are renewed. A borrower is live if its attachment wrote the
        time into the mailbox recently.
        """
        borrower = self.supply.borrower
        if borrower is not None and borrower.is_alive():
            self._renew()
        self.collector.revoke_overdue(borrower)
        self.supply.recheck()
        if borrower is not None:
            self._keep_to_cap(borrower)
            borrower.mind_late(self.supply.lent(borrower).quarantined)
            self.supply.offer_idle()

    def _keep_to_cap(self, borrower: Tenancy) -> None:
        """Begin to take back slabs over the cap."""
        cap_slabs = self.cap.slabs
        if self.is_closed or cap_slabs >= self._slab_count:
            return
        lent = self.supply.lent(borrower)
        over = lent.held - lent.in_revocation - cap_slabs
        if over > 0:
            self.collector.revoke(borrower, over, cause=Cause.CAPPED, lent=lent)

    def close(self) -> None:
        """Stop lending, and take all loans back by the deadline."""
        with self._lock:
            self.is_closed = True
            self.supply.close()
        borrower = self.supply.borrower
        if borrower is None:
            return
        lent = self.supply.lent(borrower)
        try:
            for revocation in self.collector.under_way():
                borrower.revoke(revocation)  # Repeated, because the first call may have failed.
            rest = lent.held - lent.in_revocation
            if rest > 0:
                self.collector.revoke(borrower, rest, cause=Cause.CLOSING, lent=lent)
        finally:
            self.collector.wait(lambda: False)
