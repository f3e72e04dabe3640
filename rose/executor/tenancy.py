"""Serving's representation of a borrower in another process."""

import os
from contextlib import ExitStack
from typing import Final

from rose._core import Arbiter, Process
from rose.events import Refusal
from rose.executor.borrower import wait_sentence
from rose.executor.lender import Lender
from rose.executor.messages import DESCRIPTORS_MAX, Granted, Hello, Refused, Welcome
from rose.executor.revocation import Revocation
from rose.memory import Isolation, LentSlabs, MappedLoans
from rose.slo.policy import GATE_WINDOW
from rose.units import NS_PER_MS

_NAME: Final = "rollout"
# A tenant is alive if it wrote the time into its mailbox within this share of a lease's TTL. A live
# tenant does so several times in that time.
_FRESH_SHARE: Final = 0.5


class Tenancy:
    """One tenant from its admission to its end.

    Lifecycle: made → `grow`, `revoke`, … → `end`, when the tenant disconnects or its process ends →
    `is_over` returns True, when all slabs are back. Slabs come back through the mailbox, or at the
    end of the process.
    """

    def __init__(
        self,
        hello: Hello,
        process: Process,
        *,
        lender: Lender,
        header_index: int,
        isolation: Isolation,
        device: str,
    ) -> None:
        """Make `process`, the sender of `hello`, a tenant with its own header slab.

        Raises:
            Unavailable: slabs of the previous tenant are not back yet.
        """
        self._lender = lender
        self._arbiter = arbiter = lender.arbiter
        limit_slabs = min(hello.limit_bytes // arbiter.slab_bytes, arbiter.slab_count)
        partition = _partition(arbiter, limit_slabs)
        is_mapped = isolation == "mapped"
        with ExitStack() as owners, ExitStack() as sent:
            owners.callback(arbiter.drop_partition, partition)  # A second call has no effect.
            self.tenant = arbiter.add_tenant(
                partition,
                process,
                # Never kill a borrower in serving's own process, as in a test.
                kill_late=process.pid != os.getpid(),
                is_mapped=is_mapped,
            )
            owners.callback(self.tenant.close)
            memory, object_bytes = (
                _header(arbiter, header_index, sent) if is_mapped else _pool(arbiter, sent)
            )
            ledger = arbiter.share_ledger()
            sent.callback(os.close, ledger)
            named = [
                *memory,
                ("ledger", ledger),
                ("mailbox", self.tenant.mailbox_fd),
                ("to_arbiter", self.tenant.to_arbiter_fd),
                ("to_tenant", self.tenant.to_tenant_fd),
                ("gate", lender.gate.fileno()),
            ]
            # Fills slabs with zeros when they are lent.
            self._loans = MappedLoans(arbiter, partition) if is_mapped else None
            # `sent` closes the descriptors opened here, after they are sent.
            self.descriptors = tuple(descriptor for _, descriptor in named)
            self.welcome = Welcome(
                device=device,
                partition=partition,
                header_index=header_index,
                slab_bytes=arbiter.slab_bytes,
                slab_count=arbiter.slab_count,
                header_slabs=arbiter.header_slabs,
                isolation=isolation,
                object_bytes=object_bytes,
                slabs_max=min(limit_slabs, lender.lendable_slabs),
                gate_window=GATE_WINDOW,
                has_gates=lender.policy.has_gates,
                lease_ttl_ms=lender.policy.lease_ttl_ms,
                descriptors=tuple(name for name, _ in named),
            )
            self.sent, self._owners = sent.pop_all(), owners.pop_all()
        self.partition = partition
        self.blocks_per_slab = hello.geometry.blocks_per_slab(arbiter.slab_bytes)
        self._waited_ms: float | None = None  # sum of the waits that led to the eviction
        self.has_left = False  # True after the tenant has said that it leaves
        self._has_ended = self._is_kill_noted = self._is_end_bad = False

    def grow(self, blocks: int) -> tuple[Granted | Refused, LentSlabs]:
        """Lend slabs for up to `blocks` blocks, under a certificate.

        Returns:
            The answer and its descriptors; the caller closes them.

        Raises:
            RoseError: the slabs could not be filled with zeros, or no descriptors are left.
        """
        if self._loans is not None:
            blocks = min(blocks, DESCRIPTORS_MAX * self.blocks_per_slab)
        match self._lender.grow(blocks):
            case Refusal(reason=reason, retry_after_ms=retry_ms):
                return Refused(reason.name, retry_ms), LentSlabs({})
            case grant:
                lent = LentSlabs({}) if self._loans is None else self._loans.lend(grant.slabs)
                return Granted(grant.lease_id, grant.lease_epoch, tuple(lent.fds)), lent

    def revoke(self, revocation: Revocation) -> None:
        """Begin at once: idle slabs change owner now, all others after the tenant has reacted."""
        revocation.begin(())
        self.tenant.ring()

    def note_room(self) -> None:
        """Notify the tenant that slabs are free."""
        self.tenant.ring()

    @property
    def is_evicted(self) -> bool:
        """True if the tenant's process is being killed because serving waited for its segments."""
        return self._waited_ms is not None

    def wait_budget_spent(self, waited_ms: float) -> None:
        """Kill the tenant's process, because serving waited too long for its segments."""
        self._waited_ms = waited_ms
        self.tenant.evict()

    def mind_late(self, late_slabs: int) -> None:
        """Note the kill if the core, which watches for overdue slabs, has killed the process."""
        del late_slabs
        self._note_kill()

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
            return wait_sentence(self._waited_ms)
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
        age_ns = self._lender.clock.now_ns() - self.tenant.heartbeat_ns
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
            self._ended_badly(f"ended after {wait_sentence(self._waited_ms)}")
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
        self.sent.close()
        self._owners.close()


def _pool(arbiter: Arbiter, sent: ExitStack) -> tuple[list[tuple[str, int]], tuple[int, ...]]:
    """Return descriptors of all memory objects, and the size of each in bytes."""
    pool = arbiter.share_pool()
    sent.callback(lambda: pool)  # Keeps `pool` alive; its destructor closes the descriptors.
    return [("pool", fd) for fd in pool.fds], tuple(pool.sizes)


def _header(
    arbiter: Arbiter, index: int, sent: ExitStack
) -> tuple[list[tuple[str, int]], tuple[int, ...]]:
    """Return the descriptor and the size of a "mapped" borrower's own header slab."""
    header = arbiter.share_header(index)
    sent.callback(os.close, header)
    return [("header", header)], (arbiter.slab_bytes,)


def _partition(arbiter: Arbiter, limit_slabs: int) -> int:
    """Return a partition for the borrower: the previous borrower's partition, or a new one."""
    for one in arbiter.snapshot().partitions:
        if one.name == _NAME and not one.is_live:
            arbiter.reopen_partition(one.id, limit_slabs=limit_slabs)
            return int(one.id)
    return arbiter.add_partition(_NAME, reserve_slabs=0, limit_slabs=limit_slabs)
