"""Serving's representation of a borrower, in another process or in this one."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from rose._core import Arbiter, BootClock, Process
from rose.errors import DeadlineExceeded
from rose.events import Refusal
from rose.executor.revocation import Revocation
from rose.memory import Isolation, KVGeometry, LentSlabs, MappedLoans
from rose.memory.mapped import DESCRIPTORS_MAX
from rose.units import NS_PER_MS

if TYPE_CHECKING:  # That module imports this one.
    from rose.executor.lender import Lender

_NAME: Final = "rollout"
# A tenant is alive if it wrote the time into its mailbox within this share of a lease's TTL. A live
# tenant does so several times in that time.
_FRESH_SHARE: Final = 0.5


class Tenancy:
    """One tenant from its admission to its end.

    Lifecycle: made → `grow`, `revoke`, … → `end`, when the tenant disconnects or its process ends →
    `is_over` returns True, when all slabs are back. Slabs come back through the mailbox, or at the
    end of the process. A tenant in serving's own process cannot be killed: if it keeps slabs for
    too long, lending ends. Its methods run in serving's threads and in the keeper's thread.
    """

    def __init__(
        self,
        geometry: KVGeometry,
        limit_bytes: int,
        process: Process,
        *,
        lender: "Lender",
        header_index: int,
        isolation: Isolation,
        why_refused: Callable[[], Refusal],
    ) -> None:
        """Make `process` a tenant with its own header slab.

        Args:
            geometry: KV layout of the tenant's model.
            limit_bytes: largest size of the memory on loan.
            process: process of the tenant; it may be this one.
            lender: lender of the slabs.
            header_index: index of the tenant's own header slab.
            isolation: memory that the tenant can access.
            why_refused: function that returns why the gate stays closed.

        Raises:
            Unavailable: slabs of the previous tenant are not back yet.
        """
        self._lender = lender
        self._arbiter = arbiter = lender.arbiter
        limit_slabs = min(limit_bytes // arbiter.slab_bytes, arbiter.slab_count)
        partition = _partition(arbiter, limit_slabs)
        is_mapped = isolation == "mapped"
        self._is_own = process.pid == os.getpid()
        with ExitStack() as owners:
            owners.callback(arbiter.drop_partition, partition)  # A second call has no effect.
            self.tenant = arbiter.add_tenant(
                partition, process, kill_late=not self._is_own, is_mapped=is_mapped
            )
            owners.callback(self.tenant.close)
            # Fills slabs with zeros when they are lent.
            self._loans = MappedLoans(arbiter, partition) if is_mapped else None
            self._owners = owners.pop_all()
        self.partition = partition
        self.header_index = header_index
        self.isolation = isolation
        self.why_refused = why_refused
        self.slabs_max = min(limit_slabs, lender.lendable_slabs)
        self.blocks_per_slab = geometry.blocks_per_slab(arbiter.slab_bytes)
        # Wakes the tenant, so that it looks at its mailbox. In serving's process it calls the
        # engine.
        self.ring: Callable[[], None] = self.tenant.ring
        # Whether all work of a tenant in serving's process is complete.
        self.is_idle: Callable[[], bool] = lambda: False
        self._late_since_ns: int | None = None
        self._is_taken_out = False
        self._waited_ms: float | None = None  # sum of the waits that led to the eviction
        self.has_left = False  # True after the tenant has said that it leaves
        self._has_ended = self._is_kill_noted = self._is_end_bad = False

    def grow(self, blocks: int) -> LentSlabs | Refusal:
        """Lend slabs for up to `blocks` blocks, under a certificate.

        Returns:
            Descriptors of the granted slabs with isolation "mapped", else none; or the refusal.

        Raises:
            RoseError: the slabs could not be filled with zeros, or no descriptors are left.
        """
        if self._loans is not None:
            blocks = min(blocks, DESCRIPTORS_MAX * self.blocks_per_slab)
        match self._lender.grow(blocks):
            case Refusal() as refusal:
                return refusal
            case grant:
                return LentSlabs({}) if self._loans is None else self._loans.lend(grant.slabs)

    def revoke(self, revocation: Revocation) -> None:
        """Begin at once: idle slabs change owner now, all others after the tenant has reacted."""
        revocation.begin()
        if revocation.settled_ns == 0:
            self.ring()

    def note_room(self) -> None:
        """Notify the tenant that slabs are free."""
        self.ring()

    @property
    def is_evicted(self) -> bool:
        """True if the tenant's process is being killed because serving waited for its segments."""
        return self._waited_ms is not None

    def wait_budget_spent(self, waited_ms: float) -> None:
        """Kill the tenant's process, because serving waited too long for its segments.

        Raises:
            DeadlineExceeded: the tenant is in serving's process, so lending must end instead.
        """
        if self._is_own:
            raise DeadlineExceeded(f"{_wait_sentence(waited_ms)}: the borrower was removed")
        self._waited_ms = waited_ms
        self.tenant.evict()

    def mind_late(self, late_slabs: int) -> None:
        """Note the kill if the core, which watches for overdue slabs, has killed the process.

        A tenant in serving's process has a TTL to return overdue slabs. Then lending ends, and no
        step starts any more; the slabs are usable again once the tenant's work is complete.

        Raises:
            DeadlineExceeded: such a tenant kept slabs for too long, and lending must end.
        """
        if not self._is_own:
            self._note_kill()
            return
        if late_slabs > 0 and self._is_taken_out and self.is_idle():
            self._arbiter.prove_completion(self.partition)
        if late_slabs == 0 or self._is_taken_out:
            self._late_since_ns = None
            return
        now_ns = self._arbiter.now_ns()
        if self._late_since_ns is None:
            self._late_since_ns = now_ns
        ttl_ms = self._lender.policy.lease_ttl_ms
        if now_ns - self._late_since_ns > ttl_ms * NS_PER_MS:
            self._is_taken_out = True
            raise DeadlineExceeded(
                f"the borrower has kept {late_slabs} slabs {ttl_ms:g} ms past their deadline and "
                f"was removed: its on_revoke must free the blocks of leaving slabs"
            )

    def _note_kill(self) -> None:
        if self._is_kill_noted or not self.tenant.was_killed:
            return
        self._is_kill_noted = True
        why = self._why_killed()
        self._lender.note_kill(self.partition, self.tenant.pid, why)
        self._ended_badly(f"was killed: {why}")

    def _ended_badly(self, how: str) -> None:
        """Begin the pause before the next borrower, once per tenancy."""
        if not self._is_end_bad:
            self._is_end_bad = True
            self._lender.readmission.ended_badly(
                f"the last borrower, process {self.tenant.pid}, {how}"
            )

    def _why_killed(self) -> str:
        if self._waited_ms is not None:
            return _wait_sentence(self._waited_ms)
        late = self._lender.collector.newest_fenced()
        if self._has_ended or late is None:
            return "it disconnected while its steps used slabs"
        silent_ms = (self._lender.clock.now_ns() - self.tenant.heartbeat_ns) / NS_PER_MS
        return (
            f"its steps still used slabs ({late.slabs_fenced}) {late.latency_ms:.0f} ms after "
            f"serving took them back, with a deadline of {self._lender.policy.revoke_ms:g} ms; "
            f"cause: {late.cause.value}; its last sign of life was {silent_ms:.0f} ms old"
        )

    def is_alive(self) -> bool:
        """Return True if the tenant wrote the time into its mailbox recently."""
        age_ns = BootClock().now_ns() - self.tenant.heartbeat_ns
        ttl_ns = self._lender.policy.lease_ttl_ms * NS_PER_MS
        return self.tenant.is_alive and 0 <= age_ns <= _FRESH_SHARE * ttl_ns

    def _slabs(self) -> int:
        now = self._arbiter.snapshot().partitions[self.partition]
        return int(now.held + now.quarantined)

    def end(self) -> None:
        """Take everything back, because the tenant disconnected or its process ended.

        Slabs in use are overdue at once, so the process is killed if it still runs.
        """
        self._note_kill()
        self._has_ended = True
        self._arbiter.drop_partition(self.partition)
        if self._waited_ms is not None:
            self._ended_badly(f"ended after {_wait_sentence(self._waited_ms)}")
        elif not self.has_left:
            self._ended_badly("ended without closing its device")
        self._lender.forget_borrower()

    def is_over(self, *, wait_ms: float) -> bool:
        """Return True and close everything if all slabs are back, so that another tenant may come.

        Call this until it returns True, because the process must be watched until its end.

        Args:
            wait_ms: longest wait for the end of a killed process, in milliseconds.
        """
        if self._slabs() > 0 and not self.tenant.wait_lost(timeout_ms=wait_ms):
            return False
        # The tenant may have written anything into the gate's page, and still can if its process
        # runs. So the next tenant gets another page.
        self._lender.gate.renew()
        self.let_go()
        return True

    def let_go(self) -> None:
        """Close everything and stop watching the tenant's process, even if it still runs."""
        self._note_kill()
        self._owners.close()


def _wait_sentence(waited_ms: float) -> str:
    """Say that serving waited too long."""
    return (
        f"serving waited {waited_ms:.0f} ms for segments beyond their certificates in ten minutes"
    )


def _partition(arbiter: Arbiter, limit_slabs: int) -> int:
    """Return a partition for the borrower: the previous borrower's partition, or a new one."""
    for one in arbiter.snapshot().partitions:
        if one.name == _NAME and not one.is_live:
            arbiter.reopen_partition(one.id, limit_slabs=limit_slabs)
            return int(one.id)
    return arbiter.add_partition(_NAME, reserve_slabs=0, limit_slabs=limit_slabs)
