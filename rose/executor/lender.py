"""Moves slabs between serving and the borrower: every grant certified, every revocation timed."""

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rose._core import (
    Arbiter,
    CertificateLog,
    CertifiedAdmission,
    Clock,
    Demand,
    GrantRefusal,
    HostGate,
    PartitionSnapshot,
    RenewAnswer,
    ServingState,
    Snapshot,
)
from rose.errors import DeadlineExceeded
from rose.events import Reason, Refusal
from rose.executor.aborts import AbortRation
from rose.executor.revocation import Cause, Notice, Revocation
from rose.memory import KVGeometry, KVSpace
from rose.slo import Policy
from rose.slo.policy import REVOKE_AHEAD_SLABS
from rose.units import NS_PER_MS, NS_PER_S, ceil_div

# Settled revocations are kept for reports.
_HISTORY: Final = 4096
# So often serving waits in vain for a segment of one borrower of another process; then it is ended.
_PARK_TIMEOUTS_MAX: Final = 2
# A time-out that is older counts no more: a slow segment now and then is no broken borrower, and
# costs serving one `park_wait_ms` in so long at most.
_PARK_MEMORY_NS: Final = 600 * NS_PER_S
# Revocations by serving's need that a reading tells of; more between two readings are a storm.
_EBBS: Final = 64

_REASONS: Final = {
    GrantRefusal.POOL_EMPTY: Reason.POOL_EMPTY,
    GrantRefusal.OVER_LIMIT: Reason.OVER_LIMIT,
    GrantRefusal.AT_RISK: Reason.RESERVE_AT_RISK,
}
_LEASE_IS_OVER: Final = (RenewAnswer.OVER, RenewAnswer.STALE_EPOCH)

OnRevoke = Callable[[Notice], None]


@dataclass(frozen=True, slots=True)
class Lease:
    """Slabs on loan under one certificate; `slabs` is empty where the lender did not name them."""

    lease_id: int
    lease_epoch: int
    slabs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Cap:
    """The most that may be on loan until a moment; after it, nothing."""

    slabs: int
    ends_ns: float

    def slabs_at(self, now_ns: int) -> int:
        """Return what may be on loan at `now_ns`."""
        return self.slabs if now_ns < self.ends_ns else 0


@dataclass(frozen=True, slots=True)
class Borrower:
    """The other side of the loans.

    Args:
        partition: its own.
        geometry: of its KV.
        on_revoke: called in serving's thread when slabs are wanted.
        on_room: called when slabs came free.
        is_alive: whether its loans are renewed although it does not ask at a gate.
        evict: ends its process, without waiting; None for a borrower of this process.
        is_done: whether none of its work is under way; asked of a borrower of this process.
    """

    partition: int
    geometry: KVGeometry
    on_revoke: Callable[[Revocation], None]
    on_room: Callable[[], None]
    is_alive: Callable[[], bool]
    evict: Callable[[], None] | None = None
    is_done: Callable[[], bool] = lambda: False


class Lender:
    """The memory policy of one device; the arbiter holds the books.

    Serving calls `reclaim`, `foresee`, `recheck`, `load_changed` and `offer_surplus`; the borrower
    `grow`, `renew` and `step_ended`; the keeper `tend`; who decides how much is lent
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
        self._admission = CertifiedAdmission(serving, demand, log=log, serving=state)
        self._blocks_per_slab = demand.blocks_per_slab
        self._revoke_ns = int(policy.revoke_ms * NS_PER_MS)
        self._ttl_ns = int(policy.lease_ttl_ms * NS_PER_MS)
        self._ration = AbortRation(per_s=policy.aborts_per_s, clock=clock)
        self._borrower: Borrower | None = None
        self._lock = threading.Lock()  # Guards all below.
        self._leases: list[Lease] = []
        self._open: list[Revocation] = []
        self._no_growth_before_ns = 0
        self._renewed_ns = 0
        self._cap = Cap(arbiter.slab_count, math.inf)
        self._pressures = 0
        self._ebbs: deque[tuple[int, int]] = deque(maxlen=_EBBS)
        self._is_closed = False
        self._park_timeouts = 0  # Of this borrower; serving's own count.
        self._park_timed_out_ns = 0
        # The keeper's: since when a borrower of this process is late, and whether it is taken out.
        self._late_since_ns: int | None = None
        self._is_taken_out = False
        self.history: deque[Revocation] = deque(maxlen=_HISTORY)

    @property
    def is_closed(self) -> bool:
        """Whether lending is over."""
        return self._is_closed

    def _lent(self, borrower: Borrower) -> PartitionSnapshot:
        return self.arbiter.snapshot().partitions[borrower.partition]

    def lend_to(self, borrower: Borrower) -> None:
        """Begin to lend."""
        self._park_timeouts = 0
        self._borrower = borrower
        self.load_changed()

    def forget_borrower(self) -> None:
        """Note that the borrower is gone, and with it all its loans; another one may come."""
        self._borrower = None
        with self._lock:
            self._leases.clear()
        self._collect()

    # ---- what serving could need ----------------------------------------------------------------

    def _slack_blocks(self, snapshot: Snapshot) -> int:
        """Return how many more blocks serving can have than it could need; negative when short."""
        free = snapshot.partitions[self._serving].free_blocks
        supply = free + snapshot.unowned * self._blocks_per_slab
        return int(supply - self.demand_blocks)

    @property
    def demand_blocks(self) -> int:
        """D(T) now: what serving could need before a loan is back, in its blocks."""
        return self.demand.blocks(running=self.state.pending)

    def _is_short(self, taking: int = 0) -> bool:
        """Tell the arbiter what serving could need; whether there will be less than that."""
        return self.arbiter.watch(
            self._serving,
            demand_blocks=0 if self._is_closed else self.demand_blocks,
            blocks_per_slab=self._blocks_per_slab,
            taking=taking,
        )

    def load_changed(self) -> None:
        """Note that serving has another number of requests; the keeper is rung if it is short.

        Not here: this is the way of an arriving request, and a borrower may take until T.
        """
        if self._borrower is not None and self._is_short():
            self.arbiter.ring()

    # ---- serving's side -------------------------------------------------------------------------

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
            self._take_for_serving(borrower, slabs, lent)
        self._wait(lambda: self._take(wanted))

    def _take(self, wanted: int) -> bool:
        """Take unowned slabs for `wanted` free blocks in all; True when serving has them."""
        missing = wanted - self.kv.allocator.free_blocks
        if missing > 0:
            self.arbiter.take(self._serving, ceil_div(missing, self._blocks_per_slab))
        return bool(self.kv.allocator.free_blocks >= wanted)

    def _wait(self, is_enough: Callable[[], bool]) -> None:
        """Wait for the open revocations, each until its deadline, or until it is enough."""
        with self._lock:
            under_way = list(self._open)
        for revocation in under_way:
            if is_enough():
                break
            revocation.wait(max(0, revocation.deadline_ns - self.clock.now_ns()))
        else:
            is_enough()  # What came home for nobody is there to be taken.
        self._collect()

    @property
    def is_evicted(self) -> bool:
        """Whether the borrower was ended because its segments did not stop: do not wait for it."""
        return self._park_timeouts >= _PARK_TIMEOUTS_MAX

    def park_timed_out(self) -> None:
        """Note that a segment of the borrower still ran at the end of serving's wait for it.

        The gate is written by the borrower too, so nothing that stands there ends such waits.
        """
        borrower = self._borrower
        if borrower is None or borrower.evict is None:
            return
        now_ns = self.clock.now_ns()
        with self._lock:
            is_old = now_ns - self._park_timed_out_ns > _PARK_MEMORY_NS
            self._park_timeouts = 1 if is_old else self._park_timeouts + 1
            self._park_timed_out_ns = now_ns
        if self.is_evicted:
            borrower.evict()

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
        if lent.held == lent.in_revocation:
            return
        coming = lent.in_revocation * self._blocks_per_slab
        missing = taking - self._slack_blocks(snapshot) - coming
        if missing > 0:
            slabs = ceil_div(missing, self._blocks_per_slab) + REVOKE_AHEAD_SLABS
            self._take_for_serving(borrower, slabs, lent)

    def take_back(self, slabs: int) -> None:
        """Begin to take back up to `slabs` slabs, whatever serving needs."""
        borrower = self._borrower
        if borrower is not None:
            lent = self._lent(borrower)
            self._take_for_serving(borrower, slabs, lent)

    def _take_for_serving(self, borrower: Borrower, slabs: int, lent: PartitionSnapshot) -> None:
        before = int(lent.held - lent.in_revocation)
        with self._lock:
            self._pressures += 1
            self._ebbs.append((before, max(0, before - slabs)))
        self._revoke(borrower, slabs, cause=Cause.PRESSURE)

    def _revoke(self, borrower: Borrower, slabs: int, *, cause: Cause) -> None:
        revocation = self._revocation(borrower, slabs=slabs, cause=cause)
        with self._lock:
            # Slabs that come and go abort step after step: after a revocation growth waits.
            regrow_ns = int(self.policy.regrow_after_ms * NS_PER_MS)
            self._no_growth_before_ns = revocation.asked_ns + regrow_ns
        self.log.append_revoke_begun(deadline_ns=revocation.deadline_ns, slabs=slabs)
        try:
            borrower.on_revoke(revocation)
        finally:
            # Whatever the borrower does or raises, the slabs are taken back.
            if not revocation.is_begun:
                revocation.begin(())
            with self._lock:
                self._open.append(revocation)
            if revocation.slabs_pending() > 0:
                self._abort_step(revocation)
            self._collect()

    def _abort_step(self, revocation: Revocation) -> None:
        """Ask the step in flight, if there is one, to end at its next gate."""
        with self._lock:  # Two that come at once ask one step once.
            is_asked = self.gate.is_abort_asked()
            if self.gate.abort_step():
                revocation.aborted_steps = 1
                if not is_asked:
                    self._ration.aborted()

    def _revocation(self, borrower: Borrower, *, slabs: int, cause: Cause) -> Revocation:
        now_ns = self.clock.now_ns()
        return Revocation(
            slabs=slabs,
            deadline_ns=now_ns + self._revoke_ns,
            asked_ns=now_ns,
            arbiter=self.arbiter,
            borrower=borrower.partition,
            # Serving did not ask for what is over a cap, and takes what is nobody's when it does.
            taker=None if cause is Cause.CAPPED else self._serving,
            clock=self.clock,
            cause=cause,
        )

    def offer_surplus(self) -> None:
        """Give slabs that serving could not need soon back to nobody, and tell the borrower."""
        snapshot = self.arbiter.snapshot()
        own_free = snapshot.partitions[self._serving].free_blocks
        surplus = min(own_free, self._slack_blocks(snapshot)) // self._blocks_per_slab
        borrower = self._borrower
        if surplus > 0 and self.arbiter.give_back(self._serving, surplus) and borrower:
            borrower.on_room()

    # ---- the cap --------------------------------------------------------------------------------

    def lend_at_most(self, slabs: int, *, ttl_ns: float) -> None:
        """Have at most `slabs` on loan for `ttl_ns` from now, and nothing after that."""
        with self._lock:
            before = self.cap_slabs
            self._cap = Cap(slabs, self.clock.now_ns() + ttl_ns)
        borrower = self._borrower
        if slabs > before and borrower is not None and not self._is_closed:
            borrower.on_room()
        if slabs < before:
            self.arbiter.ring()  # The keeper takes back what is over it.

    @property
    def cap_slabs(self) -> int:
        """The most that may be on loan now, whatever certificates and the borrower's limit say."""
        return self._cap.slabs_at(self.clock.now_ns())

    def cap_left(self) -> tuple[int, float] | None:
        """Return the bytes that may be on loan now and the milliseconds for which that holds.

        After a cap has run out both are 0; None without a cap.
        """
        cap, now_ns = self._cap, self.clock.now_ns()
        if math.isinf(cap.ends_ns) and cap.slabs >= self.arbiter.slab_count:
            return None
        left_ms = max(0.0, (cap.ends_ns - now_ns) / NS_PER_MS)
        return cap.slabs_at(now_ns) * self.arbiter.slab_bytes, left_ms

    def _keep_to_cap(self, borrower: Borrower) -> None:
        """Begin to take back what is on loan over the cap."""
        cap_slabs = self.cap_slabs
        if self._is_closed or cap_slabs >= self.arbiter.slab_count:
            return
        lent = self._lent(borrower)
        over = lent.held - lent.in_revocation - cap_slabs
        if over > 0:
            self._revoke(borrower, over, cause=Cause.CAPPED)

    # ---- the borrower's side --------------------------------------------------------------------

    def grow(self, blocks: int) -> Lease | Refusal:
        """Lend the borrower slabs for up to `blocks` more blocks, under a certificate.

        The arbiter asks for the certificate under its own lock: what it rests on is true when the
        slabs are handed out.
        """
        borrower = self._borrower
        if borrower is None or self.is_closed:
            return Refusal(Reason.CLOSED)
        wait_ms = self.retry_after_ms()
        if wait_ms > 0:
            return Refusal(Reason.RESERVE_AT_RISK, retry_after_ms=wait_ms)
        wanted = ceil_div(blocks, borrower.geometry.blocks_per_slab(self.arbiter.slab_bytes))
        with self._lock:
            if self._is_closed:  # Or a grant could slip in behind the last revocation.
                return Refusal(Reason.CLOSED)
            lent = self._lent(borrower)
            # Late slabs count as lent.
            room = min(self.cap_slabs, self.arbiter.slab_count) - lent.held - lent.quarantined
            slabs = min(wanted, room)
            if slabs <= 0:
                return Refusal(Reason.OVER_LIMIT)
            answer = self.arbiter.grant(
                borrower.partition,
                slabs,
                ttl_ns=self._ttl_ns,
                admission=self._admission,
            )
            if isinstance(answer, GrantRefusal):
                return Refusal(_REASONS[answer])
            lease = Lease(answer.lease_id, answer.lease_epoch, tuple(answer.slabs))
            self._leases.append(lease)
            return lease

    def give_back_idle(self) -> int:
        """Let go of the borrower's slabs that have no block in use and no pin; returns how many.

        For a borrower that has no use for them soon: they are certified anew when it wants more.
        """
        borrower = self._borrower
        if borrower is None:
            return 0
        candidates = self.arbiter.candidates(borrower.partition)
        idle = sum(one.used == 0 and one.pins == 0 for one in candidates)
        if idle == 0:
            return 0
        deadline_ns = self.clock.now_ns() + self._revoke_ns
        revocation = self.arbiter.revoke(borrower.partition, idle, deadline_ns=deadline_ns)
        return int(self.arbiter.poll(revocation).returned)

    def retry_after_ms(self) -> float:
        """How long growth is held off, in milliseconds: after a revocation, and after aborts."""
        left_ms = (self._no_growth_before_ns - self.clock.now_ns()) / NS_PER_MS
        return max(left_ms, self._ration.wait_ms())

    @property
    def pressures(self) -> tuple[int, tuple[tuple[int, int], ...]]:
        """Revocations so far that serving's need began; slabs before and after the last 64."""
        with self._lock:
            return self._pressures, tuple(self._ebbs)

    @property
    def aborts(self) -> int:
        """Steps that were asked to abort so far, because serving took slabs that they pinned."""
        return self._ration.count

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

    def step_began(self) -> None:
        """Do nothing: what serving's process maps stays mapped."""

    def step_ended(self) -> None:
        """Note what a step gave back when it ended."""
        if self._open:
            self._collect()

    def is_late(self) -> bool:
        """Whether the borrower still uses slabs whose deadline has passed."""
        borrower = self._borrower
        return borrower is not None and self._lent(borrower).quarantined > 0

    def lent_slabs(self) -> list[int]:
        """The slabs on loan that are not being taken back."""
        borrower = self._borrower
        return [one.slab for one in self.arbiter.candidates(borrower.partition)] if borrower else []

    def rank(self, slabs: Sequence[int]) -> None:
        """Do nothing: the borrower is asked."""

    def slabs_max(self) -> int:
        """The most slabs the borrower could ever hold."""
        borrower = self._borrower
        limit = self._lent(borrower).limit_slabs if borrower else 0
        return min(limit, self.lendable_slabs())

    def lendable_slabs(self) -> int:
        """What serving's reserve leaves of the pool."""
        serving = self.arbiter.snapshot().partitions[self._serving]
        return int(self.arbiter.slab_count - serving.reserve_slabs)

    def leaving_slabs(self) -> frozenset[int]:
        """The slabs to be emptied: those being taken back, and those that are late already."""
        borrower = self._borrower
        return frozenset(self.arbiter.leaving(borrower.partition) if borrower else ())

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
        for revocation_id in self.arbiter.expire(grace_ns=self._revoke_ns):
            if borrower is None:
                break  # Forgotten meanwhile: all it had is home or quarantined.
            # The borrower has not come by for a whole TTL, so it is not asked: only told.
            with self._lock:
                revocation = self._revocation(borrower, slabs=0, cause=Cause.EXPIRED)
                self._open.append(revocation.adopt(revocation_id))
        self._collect()
        self.recheck()
        if borrower is not None:
            self._keep_to_cap(borrower)
            if borrower.evict is None:
                self._mind_late(borrower)

    def _mind_late(self, borrower: Borrower) -> None:
        """Take out a borrower of this process that keeps slabs for a TTL past their deadline.

        A thread cannot be killed, so lending ends. Its late slabs are usable again when none of its
        work is under way: no step of its starts any more.

        Raises:
            DeadlineExceeded: it is to be taken out.
        """
        late = self._lent(borrower).quarantined
        if late > 0 and self._is_taken_out and borrower.is_done():
            self.arbiter.prove_completion(borrower.partition)
        if late == 0 or self._is_taken_out:
            self._late_since_ns = None
            return
        now_ns = self.clock.now_ns()
        if self._late_since_ns is None:
            self._late_since_ns = now_ns
        if now_ns - self._late_since_ns > self._ttl_ns:
            self._is_taken_out = True
            raise DeadlineExceeded(
                f"the borrower has kept {late} slabs {self.policy.lease_ttl_ms:g} ms past their "
                f"deadline and was taken out: its on_revoke must free the blocks of leaving slabs"
            )

    def _collect(self) -> None:
        """Move settled revocations into the history; past their deadline they settle by fencing."""
        with self._lock:
            settled = [one for one in self._open if one.slabs_pending() == 0]
            self._open = [one for one in self._open if one not in settled]
            self.history.extend(settled)

    def close(self) -> None:
        """Lend no more, and take back all that is lent, by the deadline."""
        with self._lock:
            self._is_closed = True
        borrower = self._borrower
        if borrower is None:
            return
        lent = self._lent(borrower)
        with self._lock:
            under_way = list(self._open)
        try:
            for revocation in under_way:
                borrower.on_revoke(revocation)  # Again: the first time something may have failed.
            if lent.held > lent.in_revocation:
                self._revoke(borrower, lent.held - lent.in_revocation, cause=Cause.CLOSING)
        finally:
            self._wait(lambda: False)
